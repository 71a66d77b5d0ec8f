"""What keys do to jobs, queues, workers and tasks: counted first, done after ``y``, and audited."""

from __future__ import annotations

from typing import Literal, NamedTuple

from umbel.backends import JobFilter
from umbel.control import Scope
from umbel.errors import NotAllowed
from umbel.messages import State
from umbel.operations import JobSearch, Operations
from umbel.top.tables import pause_of

_MAX_JOBS = 10_000
"""How many jobs one action changes at most."""
_BATCH_JOBS = 500
_RETRIED = (State.BURIED,)
_CANCELLED = (State.QUEUED, State.WAITING, State.SCHEDULED, State.BLOCKED)
_ENDED_BADLY = (State.BURIED, State.CANCELLED, State.EXPIRED)

Verb = Literal["pause", "resume", "retry", "cancel"]
ActionSubject = Literal["queue", "worker", "task", "job"]


class Asked(NamedTuple):
    """An action that was chosen by a key, and what it is applied to."""

    verb: Verb
    subject: ActionSubject
    name: str


class Plan(NamedTuple):
    """An action with the jobs to which it will be applied, no others."""

    verb: Verb
    subject: ActionSubject
    name: str
    jobs: tuple[str, ...] = ()


async def prepare(operations: Operations, asked: Asked) -> tuple[str, Plan]:
    """Return the question to ask, with the number of jobs, and what ``y`` will do.

    Raises:
        NotAllowed: there is nothing to do.
    """
    if asked.verb == "pause":
        return await _prepare_pause(operations, asked)
    jobs, is_more = await _find_jobs(operations, asked)
    if not jobs:
        what = "buried" if asked.verb == "retry" else "live"
        if asked.subject == "job":
            raise NotAllowed(f"This job is not {what}.")
        raise NotAllowed(f"The {asked.subject} {asked.name} has no {what} jobs.")
    plan = Plan(asked.verb, asked.subject, asked.name, jobs)
    if asked.subject == "job":
        return _QUESTIONS[asked.verb].format("this job"), plan
    kind = "buried" if asked.verb == "retry" else "waiting"
    kind = "running" if asked.subject == "worker" else kind
    count = f"the first {len(jobs):,}" if is_more else f"{len(jobs):,}"
    what = f"{count} {kind} {'job' if len(jobs) == 1 else 'jobs'}"
    return _QUESTIONS[asked.verb].format(f"{what} of the {asked.subject} {asked.name}"), plan


_QUESTIONS = {"retry": "Queue {} again?", "cancel": "Cancel {}?"}


async def _prepare_pause(operations: Operations, asked: Asked) -> tuple[str, Plan]:
    scope, name = asked.subject, asked.name
    if scope == "job":
        raise NotAllowed("A job cannot be paused; pause its task or its queue.")
    if pause_of(await operations.pauses(), scope, name) is not None:
        return f"Resume the {scope} {name}?", Plan("resume", scope, name)
    if scope == "worker":
        found = [one for one in await operations.workers() if one.name == name]
        running = found[0].running if found else 0
        count = "1 running job goes on" if running == 1 else f"{running:,} running jobs go on"
    else:
        jobs, is_more = await _find_jobs(operations, Asked("cancel", scope, name))
        count = "1 job waits" if len(jobs) == 1 else f"{len(jobs):,}{'+' * is_more} jobs wait"
    return f"Pause the {scope} {name} ({count})?", Plan("pause", scope, name)


async def _find_jobs(operations: Operations, asked: Asked) -> tuple[tuple[str, ...], bool]:
    """Return the jobs that the action can change, and whether there are more."""
    if asked.subject == "job":
        state = (await operations.job(asked.name)).state
        can = state in _ENDED_BADLY if asked.verb == "retry" else not state.finished
        return ((asked.name,) if can else ()), False
    states = _RETRIED if asked.verb == "retry" else _CANCELLED
    if asked.subject == "worker":
        if asked.verb == "retry":
            raise NotAllowed("Choose a queue, a task or a job to queue its buried jobs again.")
        states = (State.RUNNING,)
    names = {asked.subject: asked.name}
    wanted = JobFilter(states=states, limit=_MAX_JOBS, **names)  # type: ignore[arg-type]
    search = JobSearch(wanted=wanted, window=2 * _MAX_JOBS, with_values=False)
    found = await operations.search(search)
    return tuple(job.id for job in found.jobs), found.after is not None


async def perform(operations: Operations, plan: Plan, user: str) -> str:
    """Do it, write a line into the audit log, and return what was done.

    Raises:
        NotAllowed: another operator was faster. Unavailable: a part may have been done.
    """
    line = operations.audit.recorded(
        user=user, address="umbel top", action=plan.verb, subject=plan.name
    )
    async with line as outcome:
        outcome.text = await _do(operations, plan, user)
    return outcome.text


async def _do(operations: Operations, plan: Plan, user: str) -> str:
    reason = f"by {user} in umbel top"
    if plan.verb in ("pause", "resume"):
        assert plan.subject != "job"
        scope: Scope = plan.subject
        if plan.verb == "pause":
            await operations.pause(scope, plan.name, reason)
            return f"Paused the {scope} {plan.name}."
        if not (await operations.resume(scope, plan.name)).existed:
            raise NotAllowed(f"The {scope} {plan.name} is no longer paused.")
        return f"Resumed the {scope} {plan.name}."
    done = 0
    for start in range(0, len(plan.jobs), _BATCH_JOBS):
        batch = plan.jobs[start : start + _BATCH_JOBS]
        if plan.verb == "retry":
            done += len(await operations.retry_possible(batch))
        else:
            done += await operations.cancel_possible(batch, reason)
    return _result(plan, done)


def _result(plan: Plan, done: int) -> str:
    if not done:
        raise NotAllowed("No job was changed: another operator or a worker was faster.")
    jobs = "1 job was" if done == 1 else f"{done:,} jobs were"
    rest = len(plan.jobs) - done
    others = f"; {rest:,} had changed meanwhile" if rest else ""
    return f"{jobs} {'queued again' if plan.verb == 'retry' else 'cancelled'}{others}."
