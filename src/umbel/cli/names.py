"""Short names: a task by its last part, a limit by its task, a job by either end of its id."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from umbel.backends import Gate, JobFilter
from umbel.errors import UnknownJob, UnknownTask
from umbel.messages import POOL, TOKEN
from umbel.operations import Operations
from umbel.tasks import Registry

_RECENT = 1_000
_SHORTEST = 4
_WHOLE = 36


def full_name(registry: Registry, name: str) -> str:
    """The one task with this name, or with this name at its end.

    Raises:
        UnknownTask: none has it, or several have.
    """
    if registry.get(name) is not None:
        return name
    found = sorted(task.name for task in registry if task.name.endswith(f".{name}"))
    if len(found) > 1:
        raise UnknownTask(f"{name!r} is the end of {', '.join(found)}: write the whole name")
    if found:
        return found[0]
    ends = {task.name.rpartition(".")[2]: task.name for task in registry}
    near = [ends[end] for end in difflib.get_close_matches(name, ends, n=3)]
    if not near:
        return registry.find(name).name
    raise UnknownTask(f"no task {name!r} is registered here; did you mean {', '.join(near)}?")


def rules_named(name: str, rules: Iterable[str]) -> list[str]:
    """Rules with this name, else all of the task or queue with this name, or with it at its end."""
    rules = sorted(rules)
    if name in rules:
        return [name]
    owned = {rule: _owners(rule) for rule in rules}
    whole = [rule for rule, owners in owned.items() if name in owners]
    ends = [rule for rule, owners in owned.items() if any(o.endswith(f".{name}") for o in owners)]
    return whole or ends


def _owners(rule: str) -> tuple[str, str]:
    """``limit:tasks.mail/tenant`` → ``tasks.mail/tenant``, ``tasks.mail``."""
    whole = rule.partition(":")[2]
    return whole, whole.partition("/")[0]


def by_token(gate: Gate) -> bool:
    """Whether this is a rule that has a gate for each token, as ``limit:tasks.mail/tenant``.

    Its name says so, and that nobody is at a gate of that very name.
    """
    in_use = gate.held or gate.waiting or TOKEN in gate.key
    return gate.kind != "pool" and not in_use and names_token(gate.key)


def names_token(rule: str) -> bool:
    """Whether a rule may have tokens, by its name."""
    return not rule.startswith(POOL) and "/" in re.sub(r"/burst-[0-9]+$", "", rule)


async def full_id(operations: Operations, given: str) -> str:
    """The one job with this id, or a recent one whose id begins or ends so.

    Raises:
        UnknownJob: none has it, or several have.
    """
    given = given.strip()
    if len(given) >= _WHOLE - 4:
        # Ours are lower case; a row that somebody else wrote may have any other.
        return given if await _exists(operations, given) else given.lower()
    given = given.lower()
    if len(given) < _SHORTEST:
        raise UnknownJob(f"{given!r}: give at least {_SHORTEST} letters of a job's id")
    recent = [record.id for record in await operations.jobs(JobFilter(limit=_RECENT))]
    found = [job for job in recent if job.startswith(given) or job.endswith(given)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UnknownJob(f"no job {given}… among the {_RECENT:,} newest; give its whole id")
    some = ", ".join(found[:3]) + (" …" if len(found) > 3 else "")
    raise UnknownJob(f"{given!r} fits {len(found)} jobs: {some}; give more of it")


async def _exists(operations: Operations, job: str) -> bool:
    try:
        await operations.job(job)
    except UnknownJob:
        return False
    return True


def worker_named(text: str) -> int | str:
    """What somebody calls a worker: its index, else its name."""
    return int(text) if text.isdecimal() and len(text) <= 6 else text
