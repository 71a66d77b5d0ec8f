"""Finds tasks and workflows by the ends of their names, limits by tasks, jobs by ends of ids."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from umbel.backends import Gate, JobFilter
from umbel.errors import UnknownJob, UnknownTask
from umbel.messages import POOL_PREFIX, TOKEN_SEPARATOR, State
from umbel.operations import JobSearch, Operations
from umbel.tasks import Registry

if TYPE_CHECKING:
    from umbel.app import Umbel
    from umbel.tasks import Task
    from umbel.tasks.workflow import Workflow

_RECENT_JOBS = 1_000
_SEARCH_WINDOW = 100_000
"""How many jobs are read to find one by a part of its id."""
_MIN_ID_LETTERS = 4
_FULL_ID_LETTERS = 36
_SHORT_ID_LETTERS = 8
_MAX_CANDIDATES = 10
_BURIED = (State.BURIED,)


def find_task_name(registry: Registry, name: str) -> str:
    """Return the one task with this name, or whose name ends with it.

    Raises:
        UnknownTask: no task or several tasks match.
    """
    if registry.get(name) is not None:
        return name
    found = sorted(task.name for task in registry if task.name.endswith(f".{name}"))
    if len(found) > 1:
        raise UnknownTask(f"{name!r} matches {', '.join(found)}; give the full name")
    if found:
        return found[0]
    ends = {task.name.rpartition(".")[2]: task.name for task in registry}
    near = [ends[end] for end in difflib.get_close_matches(name, ends, n=3)]
    if not near:
        return registry.find(name).name
    raise UnknownTask(f"no task {name!r} is registered here; did you mean {', '.join(near)}?")


def find_workflow(declared: Mapping[str, Workflow[..., Any]], name: str) -> Workflow[..., Any]:
    """Return the declared workflow with this name, or whose name ends so. Raise UnknownTask."""
    if name in declared:
        return declared[name]
    found = [one for one in declared if one.endswith(f".{name}")]
    if len(found) == 1:
        return declared[found[0]]
    known = f"it has {', '.join(sorted(declared))}" if declared else "it has none"
    raise UnknownTask(f"the application has no workflow {name!r:.80}; {known}")


def find_callable(app: Umbel, name: str) -> Task[..., Any] | Workflow[..., Any]:
    """Return the task with this name, or the workflow. Raise UnknownTask."""
    if name not in app.workflows:
        try:
            return app.registry.find(find_task_name(app.registry, name))
        except UnknownTask:
            if not any(one.endswith(f".{name}") for one in app.workflows):
                raise
    return find_workflow(app.workflows, name)


def find_rules(name: str, rules: Iterable[str]) -> list[str]:
    """Return rules with this name, or else those of the task or queue whose name is or ends so."""
    rules = sorted(rules)
    if name in rules:
        return [name]
    owned = {rule: _owners(rule) for rule in rules}
    whole = [rule for rule, owners in owned.items() if name in owners]
    ends = [rule for rule, owners in owned.items() if any(o.endswith(f".{name}") for o in owners)]
    return whole or ends


def _owners(rule: str) -> tuple[str, str]:
    """Split ``limit:tasks.mail/tenant`` into ``tasks.mail/tenant`` and ``tasks.mail``."""
    whole = rule.partition(":")[2]
    return whole, whole.partition("/")[0]


def has_gate_per_token(gate: Gate) -> bool:
    """Return whether a rule has a gate for each token, such as ``limit:tasks.mail/tenant``.

    Its name shows it, if no job holds or waits for a gate of exactly that name.
    """
    in_use = gate.held or gate.waiting or TOKEN_SEPARATOR in gate.key
    return gate.kind != "pool" and not in_use and can_have_tokens(gate.key)


def can_have_tokens(rule: str) -> bool:
    """Return whether a rule may have tokens, judged by its name."""
    return not rule.startswith(POOL_PREFIX) and "/" in re.sub(r"/burst-[0-9]+$", "", rule)


async def find_job_id(operations: Operations, given: str) -> str:
    """Return the id of the one job with this id, or whose id starts or ends so.

    Only the newest jobs and the newest buried ones are searched for a part of an id.

    Raises:
        UnknownJob: no job or several jobs match.
    """
    given = given.strip()
    if len(given) >= _FULL_ID_LETTERS - 4:
        # Umbel's ids are lower case; foreign senders may use others.
        return given if await _exists(operations, given) else given.lower()
    given = given.lower()
    if len(given) < _MIN_ID_LETTERS:
        raise UnknownJob(f"{given!r}: give at least {_MIN_ID_LETTERS} letters of a job's id")
    found = await _search(operations, given, ()) or await _search(operations, given, _BURIED)
    if len(found) == 1:
        return found[0]
    if not found:
        raise UnknownJob(
            f"no job {given} among the {_SEARCH_WINDOW:,} newest; give the full id, which umbel"
            " jobs list --json prints"
        )
    some = ", ".join(found[:_MAX_CANDIDATES]) + (" …" if len(found) > _MAX_CANDIDATES else "")
    number = "several" if len(found) > _MAX_CANDIDATES else len(found)
    raise UnknownJob(f"{given!r} matches {number} jobs: {some}; give more letters")


async def _search(operations: Operations, given: str, states: tuple[State, ...]) -> list[str]:
    """Return the ids that start or end so, among the newest jobs in these states."""
    wanted = JobFilter(id_part=given, states=states, limit=_MAX_CANDIDATES + 1)
    found = await operations.search(JobSearch(wanted=wanted, window=_SEARCH_WINDOW))
    ids = [job.id for job in found.jobs]
    return [job for job in ids if job.lower() == given] or ids


async def recent_ids(operations: Operations) -> list[str]:
    """Return the ids of the newest jobs, from which a short id must differ."""
    return [record.id for record in await operations.jobs(JobFilter(limit=_RECENT_JOBS))]


def short_ids(jobs: Sequence[str], among: Sequence[str] = ()) -> dict[str, str]:
    """Return the end of each id, as long as needed to tell the ids apart.

    An id begins with the time, so ids of jobs that were published together differ at the end.
    The ids in ``among`` are not shown, but must not end so either.
    """
    different = {*jobs, *among}
    letters = _SHORT_ID_LETTERS
    while len({job[-letters:] for job in different}) < len(different):
        letters += 1
    return {job: job[-letters:] for job in different}


def short_id(job: str) -> str:
    """Return the end of one id."""
    return job[-_SHORT_ID_LETTERS:]


async def _exists(operations: Operations, job: str) -> bool:
    try:
        await operations.job(job)
    except UnknownJob:
        return False
    return True


def parse_worker(text: str) -> int | str:
    """Return the index or the name of a worker that the text stands for."""
    return int(text) if text.isdecimal() and len(text) <= 6 else text
