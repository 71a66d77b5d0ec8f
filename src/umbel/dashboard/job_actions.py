"""What users can do with one job: retry, edit, cancel and publish it."""

from __future__ import annotations

from typing import Any

from umbel.backends import Changes
from umbel.control.audit import NO_OUTCOME
from umbel.dashboard.action_requests import Action, ActionRequest, read_call
from umbel.errors import NotAllowed, UnknownTask
from umbel.messages import Record, State


async def _retry(request: ActionRequest) -> str:
    job = await _job_as_seen(request)
    await request.operations.retry([job.id])
    return "The job is queued again."


async def _edit(request: ActionRequest) -> str:
    job = await _job_as_seen(request)
    task = request.app.registry.get(job.task)
    call = read_call(request.get("arguments"))
    body = request.app.codec.encode(call, what=f"arguments of {job.task}")
    if task is not None:
        task.parameters.decode(request.app.codec.decode(body))
    queue = request.fields.get("queue", "").strip() or None
    await request.operations.retry([job.id], Changes(body=body, queue=queue))
    return "The job was changed and is queued again."


async def _cancel(request: ActionRequest) -> str:
    job = await _job_as_seen(request)
    state = (await request.operations.cancel([job.id], request.reason))[job.id]
    if state is State.CANCELLED:
        return "The job is cancelled."
    if state is State.RUNNING:
        return "The job is running; its worker was asked to stop it."
    raise NotAllowed(f"The job is already {state.value}.")


async def _job_as_seen(request: ActionRequest) -> Record:
    """Return the job. Raises NotAllowed if its state is no longer the one that the user saw."""
    job = await request.operations.job(request.get("job"))
    seen = request.fields.get("seen", "")
    if seen and job.state.value != seen:
        raise NotAllowed(
            f"The job was {seen} when you saw it and is {job.state.value} now"
            f"{await _last_change(request, job.id)}. Reload the page."
        )
    return job


async def _last_change(request: ActionRequest, job: str) -> str:
    """Return who changed a job last and when, if one of the newest actions of users did."""
    lines, _ = await request.operations.audit.read()
    for line in lines:
        was_done = line.outcome != NO_OUTCOME and not line.outcome.startswith("refused")
        if job in line.subject.split() and was_done:
            seconds = max(0.0, request.app.clock.now() - line.at)
            return f": {line.action} by {line.user} {seconds:.0f} s ago"
    return ""


async def _publish(request: ActionRequest) -> str:
    task = request.app.registry.get(request.get("task"))
    if task is None:
        raise UnknownTask(f"this dashboard's application has no task {request.get('task')!r:.80}")
    call = read_call(request.get("arguments"))
    body = request.app.codec.encode(call, what=f"arguments of {task.name}")
    args, kwargs = task.parameters.decode(request.app.codec.decode(body))
    options = _call_options(request)
    [handle] = await request.app.apublish_many([task.s(*args, **kwargs).options(**options)])
    request.answer["id"] = handle.id
    return f"Published the job {handle.id}."


def _call_options(request: ActionRequest) -> dict[str, Any]:
    """Return the options of a call that a request names."""
    priority = request.decimal("priority")
    found = {
        "queue": request.optional("queue"),
        "delay": request.decimal("delay"),
        "priority": int(priority) if priority is not None and priority.is_integer() else priority,
        "unique": request.optional("unique"),
        "id": request.optional("id"),
    }
    return {name: value for name, value in found.items() if value is not None}


JOB_ACTIONS = (
    Action(
        name="retry",
        summary="Queue a buried, cancelled or expired job again.",
        act=_retry,
        fields=("job",),
        optional=("seen",),
        subject=("job",),
    ),
    Action(
        name="edit",
        summary="Change the arguments of a finished job and queue it again.",
        act=_edit,
        fields=("job", "arguments"),
        optional=("seen", "queue"),
        subject=("job",),
    ),
    Action(
        name="cancel",
        summary="Cancel a job that waits or runs.",
        act=_cancel,
        fields=("job",),
        optional=("seen", "reason"),
        subject=("job",),
    ),
    Action(
        name="publish",
        summary="Publish a job of a task.",
        act=_publish,
        fields=("task", "arguments"),
        optional=("queue", "delay", "priority", "unique", "id"),
        subject=("task",),
    ),
)
"""The actions on one job."""
