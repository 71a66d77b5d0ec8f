"""What users can do on the dashboard and over HTTP: one table, which also checks roles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from msgspec.structs import replace

from umbel.backends import Changes, JobFilter
from umbel.control import ROLES, Scope
from umbel.control.audit import NO_OUTCOME
from umbel.dashboard.filters import JOB_FILTERS, job_search
from umbel.dashboard.graph_actions import GRAPH_ACTIONS
from umbel.dashboard.rendering import plural
from umbel.dashboard.requests import MAX_BULK_JOBS, Action, Request, read_call
from umbel.dashboard.visibility import visible
from umbel.errors import ConfigurationError, NotAllowed, UnknownTask
from umbel.messages import WORKER_RULE_PREFIX, Record, State, rule_of
from umbel.operations import JobSearch, group_key
from umbel.schedules import make_timing
from umbel.tasks import Rate

_BATCH_JOBS = 500
_MAX_READ_JOBS = 100_000
_MORE = " There are more; do it again for them."
_RETRIED = (State.BURIED, State.CANCELLED, State.EXPIRED)
_CANCELLED = tuple(state for state in State if not state.finished)
_SCOPES = ("all", "queue", "task", "gate", "worker")


# --- jobs ------------------------------------------------------------------------------------


async def _retry(request: Request) -> str:
    job = await _job_as_seen(request)
    await request.operations.retry([job.id])
    return "The job is queued again."


async def _edit(request: Request) -> str:
    job = await _job_as_seen(request)
    task = request.app.registry.get(job.task)
    call = read_call(request.get("arguments"))
    body = request.app.codec.encode(call, what=f"arguments of {job.task}")
    if task is not None:
        task.parameters.decode(request.app.codec.decode(body))
    queue = request.fields.get("queue", "").strip() or None
    await request.operations.retry([job.id], Changes(body=body, queue=queue))
    return "The job was changed and is queued again."


async def _cancel(request: Request) -> str:
    job = await _job_as_seen(request)
    state = (await request.operations.cancel([job.id], request.reason))[job.id]
    if state is State.CANCELLED:
        return "The job is cancelled."
    if state is State.RUNNING:
        return "The job is running; its worker was asked to stop it."
    raise NotAllowed(f"The job is already {state.value}.")


async def _job_as_seen(request: Request) -> Record:
    """Return the job. Raises NotAllowed if its state is no longer the one that the user saw."""
    job = await request.operations.job(request.get("job"))
    seen = request.fields.get("seen", "")
    if seen and job.state.value != seen:
        raise NotAllowed(
            f"The job was {seen} when you saw it and is {job.state.value} now"
            f"{await _last_change(request, job.id)}. Reload the page."
        )
    return job


async def _last_change(request: Request, job: str) -> str:
    """Return who changed a job last and when, if one of the newest actions of users did."""
    lines, _ = await request.operations.audit.read()
    for line in lines:
        was_done = line.outcome != NO_OUTCOME and not line.outcome.startswith("refused")
        if job in line.subject.split() and was_done:
            seconds = max(0.0, request.app.clock.now() - line.at)
            return f": {line.action} by {line.user} {seconds:.0f} s ago"
    return ""


async def _retry_group(request: Request) -> str:
    ids, is_more = await _group(request)
    return await _retry_all(request, ids) + _MORE * is_more


async def _forget_group(request: Request) -> str:
    _check_typed(request, request.get("task"))
    ids, is_more = await _group(request)
    deleted = 0
    for batch in _batches(ids):
        deleted += await request.operations.forget_possible(batch)
    return f"{_changed(deleted, 'job was', 'jobs were')} deleted." + _MORE * is_more


async def _group(request: Request) -> tuple[list[str], bool]:
    """Return the buried jobs of a task with one error, and whether there are more than can be
    changed at once. Raises NotAllowed if many more match now than the user saw.
    """
    group = request.get("group")
    limit = request.number("limit", 1, MAX_BULK_JOBS)
    seen = request.number("count", 1, 1_000_000_000)
    wanted = JobFilter(states=(State.BURIED,), task=request.get("task"))
    ids, is_more = await _find_jobs(
        request, JobSearch(wanted=wanted), limit, lambda job: group_key(job) == group
    )
    expected = limit if request.fields.get("is_more") else min(limit, seen)
    _check_drift(len(ids), expected, seen)
    return ids, is_more and limit == MAX_BULK_JOBS


async def _retry_jobs(request: Request) -> str:
    ids, is_more = await _chosen_jobs(request, _RETRIED)
    return await _retry_all(request, ids) + _MORE * is_more


async def _cancel_jobs(request: Request) -> str:
    ids, is_more = await _chosen_jobs(request, _CANCELLED)
    cancelled = 0
    for batch in _batches(ids):
        cancelled += await request.operations.cancel_possible(batch, request.reason)
    done = _changed(cancelled, "job is cancelled or was", "jobs are cancelled or were")
    return f"{done} asked to stop." + _MORE * is_more


async def _retry_all(request: Request, ids: list[str]) -> str:
    queued = 0
    for batch in _batches(ids):
        queued += len(await request.operations.retry_possible(batch))
    return f"{_changed(queued, 'job is', 'jobs are')} queued again."


def _changed(jobs: int, one: str, many: str) -> str:
    """Return how many jobs were changed, with a verb. Raises NotAllowed if none was."""
    if not jobs:
        raise NotAllowed(
            "No job was changed: their states do not allow it any more, or there are none."
        )
    return plural(jobs, one, many)


def _batches(ids: list[str]) -> Iterator[list[str]]:
    return (ids[start : start + _BATCH_JOBS] for start in range(0, len(ids), _BATCH_JOBS))


async def _chosen_jobs(request: Request, states: tuple[State, ...]) -> tuple[list[str], bool]:
    """Return the jobs that a request names, or those that match its filter, and whether there are
    more. Raises NotAllowed if many more match now than the user saw.
    """
    if (named := request.optional("jobs")) is not None:
        if (count := len(ids := named.split())) > MAX_BULK_JOBS:
            raise ConfigurationError(
                f"jobs: {count:,} ids; give at most {MAX_BULK_JOBS:,}, and the others in further"
                " requests"
            )
        return ids, False
    if request.get("state") not in {state.value for state in states}:
        raise ConfigurationError(f"state: give one of {', '.join(states)}")
    seen = request.number("count", 1, 1_000_000_000)
    search = job_search(request.fields)
    ids, is_more = await _find_jobs(request, search, MAX_BULK_JOBS, lambda job: True)
    _check_drift(len(ids), MAX_BULK_JOBS if request.fields.get("is_more") else seen, seen)
    return ids, is_more


def _check_drift(found: int, expected: int, seen: int) -> None:
    """Raise NotAllowed if no job matches any more, or many more than expected."""
    if not found or found > expected * 1.1 + 1:
        match = plural(found, "job matches", "jobs match")
        raise NotAllowed(f"{match} now; it was {seen:,} when you saw it. Reload the page.")


async def _find_jobs(
    request: Request, search: JobSearch, limit: int, matches: Callable[[Record], bool]
) -> tuple[list[str], bool]:
    """Return the ids of the first jobs that match, and whether there are more."""
    ids: list[str] = []
    after: str | None = ""
    read = 0
    while after is not None and len(ids) <= limit and read < _MAX_READ_JOBS:
        wanted = replace(search.wanted, limit=_BATCH_JOBS)
        part = replace(search, wanted=wanted, after=after, with_values=False)
        found = await request.operations.search(part)
        ids += [job.id for job in found.jobs if matches(job)]
        after, read = found.after, read + found.read
    return ids[:limit], len(ids) > limit or after is not None


async def _publish(request: Request) -> str:
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


def _call_options(request: Request) -> dict[str, Any]:
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


# --- queues, tasks, workers ------------------------------------------------------------------


async def _pause(request: Request) -> str:
    scope, name = _target(request)
    await request.operations.pause(scope, name, request.reason)
    return f"Paused {_named(scope, name)}."


async def _resume(request: Request) -> str:
    scope, name = _target(request)
    resumed = await request.operations.resume(scope, name)
    if not resumed.existed:
        raise NotAllowed(f"No operator has paused {_named(scope, name)}.")
    return f"Resumed {_named(scope, name)}."


def _target(request: Request) -> tuple[Scope, str]:
    scope = request.get("scope")
    if scope not in _SCOPES:
        raise ConfigurationError(f"scope={scope!r:.40}: give one of {', '.join(_SCOPES)}")
    return cast(Scope, scope), "" if scope == "all" else request.get("name")


def _named(scope: str, name: str) -> str:
    return "all jobs" if scope == "all" else f"the {scope} {name}"


async def _purge(request: Request) -> str:
    name = request.get("name")
    _check_typed(request, name)
    cancelled = await request.operations.purge(name)
    return f"{_changed(cancelled, 'job is', 'jobs are')} cancelled."


def _check_typed(request: Request, name: str) -> None:
    """Raise ConfigurationError unless the user has typed a name."""
    if request.fields.get("confirm") not in (name, visible(name, 300)):
        raise ConfigurationError(f"confirm: type the name {visible(name, 300)}")


async def _move(request: Request) -> str:
    moved = await request.operations.move(request.get("name"), request.get("target"))
    return f"{_changed(moved, 'job was', 'jobs were')} moved."


# --- limits, pools, routes -------------------------------------------------------------------


async def _set_limit(request: Request) -> str:
    rule, each = _rule(request)
    text = request.fields.get("capacity", "").strip()
    capacity = None if not text else request.number("capacity", 0, 1_000_000)
    if not await request.operations.override_capacity(rule, capacity):
        raise NotAllowed(f"There is no limit {rule}.")
    if capacity is None:
        return f"{rule} has its declared capacity again{each}."
    admits = f"{rule} now admits {plural(capacity, 'job', 'jobs')}{each}."
    return admits + (" No job passes it." * (capacity == 0))


async def _set_rate(request: Request) -> str:
    rule, each = _rule(request)
    parts = request.fields.get("rates", "").strip()
    rates = [Rate(part.strip()) for part in parts.split(",")] if parts else []
    numbers = [(rate.count, rate.period) for rate in rates]
    if not await request.operations.override_rates(rule, numbers or None):
        raise NotAllowed(f"There is no rate {rule}.")
    if not rates:
        return f"{rule} has its declared rates again{each}."
    return f"{rule} now lets jobs start at {parts}{each}."


def _rule(request: Request) -> tuple[str, str]:
    """Return the rule of a gate, and words if it applies to more than this gate.

    Raises:
        NotAllowed: each worker applies it by itself.
    """
    key = request.get("rule")
    rule = rule_of(key)
    if rule.startswith(WORKER_RULE_PREFIX):
        raise NotAllowed(
            f"Each worker applies {rule} by itself: change it in the code, and restart the workers."
        )
    return rule, " for each token" if key != rule else ""


async def _drain(request: Request) -> str:
    if not await request.operations.drain(request.get("pool"), [request.get("member")]):
        raise NotAllowed("There is no such member.")
    return "The member gets no new jobs."


async def _ready(request: Request) -> str:
    if not await request.operations.ready(request.get("pool"), [request.get("member")]):
        raise NotAllowed("There is no such member.")
    return "The member gets jobs again."


async def _remove_member(request: Request) -> str:
    _check_typed(request, request.get("member"))
    if not await request.operations.remove_members(request.get("pool"), [request.get("member")]):
        raise NotAllowed("There is no such member.")
    return "The member was removed. A job that holds it keeps it until it ends."


async def _retire(request: Request) -> str:
    moved = await request.operations.retire(await _index(request, retiring=False))
    moves = plural(moved, "route moves", "routes move")
    return f"The worker gets no more routes; {moves} to other workers."


async def _unretire(request: Request) -> str:
    await request.operations.retire(await _index(request, retiring=True), retiring=False)
    return "The worker gets routes again."


async def _index(request: Request, *, retiring: bool | None = None) -> int:
    """Return the index that a request names. Raises NotAllowed if it is not in this state."""
    index = request.number("index", 0, 999_999)
    found = [one for one in await request.operations.worker_indexes() if one.index == index]
    if not found:
        raise NotAllowed(f"No worker has the index {index}.")
    if retiring is not None and found[0].retiring is not retiring:
        raise NotAllowed(f"The worker is {'not ' * retiring}retired.")
    return index


async def _move_route(request: Request) -> str:
    index = await _index(request)
    if await request.operations.move_route(request.get("key"), index, request.reason) is None:
        raise NotAllowed("The key has no route.")
    return f"The next route of the key goes to the worker with the index {index}."


async def _release(request: Request) -> str:
    if await request.operations.release(request.get("key"), request.reason) is None:
        raise NotAllowed("The key has no route.")
    return "The route ends; the next job with its key gets a new one."


# --- schedules and deployments ---------------------------------------------------------------


async def _trigger(request: Request) -> str:
    job, state = await request.operations.schedules.trigger(request.get("schedule"))
    request.answer["id"] = job
    return f"Published the job {job}; it is {state.value}."


async def _pause_schedule(request: Request) -> str:
    await request.operations.schedules.pause(
        request.get("schedule"), request.reason, request.user.name
    )
    return "The schedule is paused."


async def _resume_schedule(request: Request) -> str:
    schedule, schedules = request.get("schedule"), request.operations.schedules
    if (await schedules.show(schedule)).state != "paused":
        raise NotAllowed("The schedule is not paused.")
    await schedules.resume(schedule)
    return "The schedule is active."


async def _edit_schedule(request: Request) -> str:
    schedule, schedules = request.get("schedule"), request.operations.schedules
    cron = request.optional("cron")
    every = request.number("every", 1, 366 * 86_400) if request.fields.get("every") else None
    zone = request.optional("zone")
    if cron is not None and every is not None:
        raise ConfigurationError("cron, every: give one of them")
    if cron is None and every is None and zone is None:
        raise ConfigurationError("cron, every, zone: give one of them")
    changes: dict[str, Any] = {} if zone is None else {"zone": zone}
    if cron is not None:
        changes["timing"] = make_timing(cron=cron, zone=zone)
    elif every is not None:
        phase = (await schedules.show(schedule)).plan.timing.phase
        changes["timing"] = make_timing(every=every, phase=phase % every)
    changed = await schedules.edit(schedule, changes, reset=False, who=request.user.name)
    return f"The schedule fires {changed.plan.timing.describe()}."


async def _reset_schedule(request: Request) -> str:
    schedule, schedules = request.get("schedule"), request.operations.schedules
    if not (await schedules.show(schedule)).changes:
        raise NotAllowed("The schedule has no changes.")
    changed = await schedules.edit(schedule, {}, reset=True, who=request.user.name)
    return f"The schedule fires {changed.plan.timing.describe()}, as in the code."


async def _remove_schedule(request: Request) -> str:
    await request.operations.schedules.remove(request.get("schedule"))
    return "The schedule and its history were removed."


async def _end_deployment(request: Request) -> str:
    ended = await request.operations.deploy.end(request.user.name, force=True)
    if ended is None:
        raise NotAllowed("No deployment is in progress.")
    return "The deployment has ended; workers fetch jobs again."


# --- users -----------------------------------------------------------------------------------


async def _set_user(request: Request) -> str:
    name, role = request.get("name"), request.get("role")
    if role not in ROLES:
        raise ConfigurationError(f"role={role!r:.40}: give one of {', '.join(ROLES)}")
    password, keep_admin = request.get("password"), not request.user.is_local
    await request.operations.access.set_user(name, role, password, keep_admin=keep_admin)
    return f"{name} is a user with the role {role}."


async def _remove_user(request: Request) -> str:
    name, keep_admin = request.get("name"), not request.user.is_local
    if not await request.operations.access.remove_user(name, keep_admin=keep_admin):
        raise NotAllowed("There is no such user.")
    return "The user was removed and is logged out."


ACTIONS: dict[str, Action] = {
    action.name: action
    for action in (
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
            name="retry-group",
            summary="Queue the buried jobs with one error again.",
            act=_retry_group,
            fields=("task", "group", "limit", "count"),
            optional=("is_more",),
            subject=("task", "group"),
        ),
        Action(
            name="forget-group",
            summary="Delete the buried jobs with one error.",
            act=_forget_group,
            role="admin",
            fields=("task", "group", "limit", "count", "confirm"),
            optional=("is_more",),
            subject=("task", "group"),
        ),
        Action(
            name="retry-jobs",
            summary="Queue jobs again: those with these ids, or all that match a filter.",
            act=_retry_jobs,
            optional=("jobs", "state", *JOB_FILTERS, "count", "is_more"),
            subject=("jobs",),
            filters=("state", *JOB_FILTERS),
        ),
        Action(
            name="cancel-jobs",
            summary="Cancel jobs: those with these ids, or all that match a filter.",
            act=_cancel_jobs,
            optional=("jobs", "state", *JOB_FILTERS, "count", "is_more", "reason"),
            subject=("jobs",),
            filters=("state", *JOB_FILTERS),
        ),
        Action(
            name="publish",
            summary="Publish a job of a task.",
            act=_publish,
            fields=("task", "arguments"),
            optional=("queue", "delay", "priority", "unique", "id"),
            subject=("task",),
        ),
        *GRAPH_ACTIONS,
        Action(
            name="pause",
            summary="Start no more jobs of a queue, task, gate or worker, or no jobs at all.",
            act=_pause,
            fields=("scope",),
            optional=("name", "reason"),
            subject=("scope", "name"),
        ),
        Action(
            name="resume",
            summary="End an operator's pause.",
            act=_resume,
            fields=("scope",),
            optional=("name",),
            subject=("scope", "name"),
        ),
        Action(
            name="purge",
            summary="Cancel all jobs of a queue that do not run.",
            act=_purge,
            role="admin",
            fields=("name", "confirm"),
            subject=("name",),
        ),
        Action(
            name="move",
            summary="Move the waiting jobs of a queue to another queue.",
            act=_move,
            fields=("name", "target"),
            subject=("name", "target"),
        ),
        Action(
            name="set-limit",
            summary="Override the capacity of a limit; an empty capacity removes the override.",
            act=_set_limit,
            fields=("rule",),
            optional=("capacity",),
            subject=("rule",),
        ),
        Action(
            name="set-rate",
            summary="Override the rates of a rule, as in 10/s, 200/m; empty removes the override.",
            act=_set_rate,
            fields=("rule",),
            optional=("rates",),
            subject=("rule",),
        ),
        Action(
            name="drain",
            summary="Give a member of a pool to no new jobs.",
            act=_drain,
            fields=("pool", "member"),
            subject=("pool", "member"),
        ),
        Action(
            name="ready",
            summary="Use a drained or quarantined member of a pool again.",
            act=_ready,
            fields=("pool", "member"),
            subject=("pool", "member"),
        ),
        Action(
            name="remove-member",
            summary="Remove a member of a pool; a job that holds it keeps it.",
            act=_remove_member,
            fields=("pool", "member", "confirm"),
            subject=("pool", "member"),
        ),
        Action(
            name="retire",
            summary="Give a worker no more routes, and move its own to other workers.",
            act=_retire,
            fields=("index",),
            subject=("index",),
        ),
        Action(
            name="unretire",
            summary="Give a worker routes again.",
            act=_unretire,
            fields=("index",),
            subject=("index",),
        ),
        Action(
            name="release",
            summary="End the route of a key.",
            act=_release,
            fields=("key",),
            optional=("reason",),
            subject=("key",),
        ),
        Action(
            name="move-route",
            summary="End the route of a key; its next route goes to the worker with this index.",
            act=_move_route,
            fields=("key", "index"),
            optional=("reason",),
            subject=("key", "index"),
        ),
        Action(
            name="trigger",
            summary="Publish a job of a schedule now.",
            act=_trigger,
            fields=("schedule",),
            subject=("schedule",),
        ),
        Action(
            name="pause-schedule",
            summary="Publish no more jobs of a schedule.",
            act=_pause_schedule,
            fields=("schedule",),
            optional=("reason",),
            subject=("schedule",),
        ),
        Action(
            name="resume-schedule",
            summary="Publish jobs of a schedule again.",
            act=_resume_schedule,
            fields=("schedule",),
            subject=("schedule",),
        ),
        Action(
            name="edit-schedule",
            summary="Change when a schedule fires: by cron, every so many seconds, or its zone.",
            act=_edit_schedule,
            fields=("schedule",),
            optional=("cron", "every", "zone"),
            subject=("schedule",),
        ),
        Action(
            name="reset-schedule",
            summary="Take back all changes of a schedule.",
            act=_reset_schedule,
            fields=("schedule",),
            subject=("schedule",),
        ),
        Action(
            name="remove-schedule",
            summary="Remove a schedule that no running worker declares, with its history.",
            act=_remove_schedule,
            fields=("schedule",),
            subject=("schedule",),
        ),
        Action(
            name="end-deployment",
            summary="End the deployment that is in progress.",
            act=_end_deployment,
            role="admin",
        ),
        Action(
            name="set-user",
            summary="Add a user, or change the role and password of one.",
            act=_set_user,
            role="admin",
            fields=("name", "role", "password"),
            subject=("name", "role"),
        ),
        Action(
            name="remove-user",
            summary="Remove a user and end the user's sessions.",
            act=_remove_user,
            role="admin",
            fields=("name",),
            subject=("name",),
        ),
    )
}
"""All actions by name."""
