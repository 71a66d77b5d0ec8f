"""Searches jobs by the text of their errors and by their arguments, within a bounded window.

The store selects by state, task, queue, worker and time, which its indexes support. What remains
is compared here, job by job, so that no adapter needs a text search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any

import anyio.lowlevel
import msgspec
from msgspec.structs import replace

from umbel.backends import JobFilter, Records
from umbel.clock import Clock
from umbel.errors import BadMessage, ConfigurationError
from umbel.messages import ROUTE_PREFIX, BodyCodec, Failure, Record, route_key
from umbel.tasks import Registry
from umbel.tasks.gates import token_of

_FIRST_PORTION, _MIN_PORTION, _MAX_PORTION = 64, 16, 500
"""Jobs that are read at once. How many follow depends on how large these were."""
_PORTION_BYTES = 8_000_000
_GROWTH = 4
_PAGE_ROWS = 10_000


class JobSearch(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to search for, from where, and how many to read at most.

    Raises:
        ConfigurationError: a text is empty, or the window is too small.
    """

    wanted: JobFilter = JobFilter()
    error: str | None = None
    """Text of an error or reason, in any case of letters. Earlier attempts count, too."""
    arguments: tuple[str, ...] = ()
    """Each is ``name=value``, or a text that the arguments contain, in any case of letters."""
    key: str | None = None
    """The unique key of the job, or the key of its affinity."""
    after: str = ""
    """The cursor of the page before. Empty: from the beginning."""
    window: int = 50_000
    """Maximum number of jobs to read."""
    seconds: float = inf
    """After so many seconds, no further job is compared."""
    with_values: bool = True
    """Whether the jobs have arguments, results and tracebacks. Thousands without them take little
    memory."""

    def __post_init__(self) -> None:
        for field, texts in (
            ("error", (self.error,)),
            ("arguments", self.arguments),
            ("key", (self.key,)),
        ):
            for text in texts:
                if text is not None and not text.strip():
                    raise ConfigurationError(f"{field}={text!r} is empty: give a text")
        if self.window < 1:
            raise ConfigurationError(f"window={self.window} is too small: read at least one job")


class FoundJobs(msgspec.Struct, frozen=True):
    """The jobs that a search has found."""

    jobs: list[Record]
    cursors: list[str]
    """For each job, the cursor from which a search continues after it."""
    after: str | None
    """Where the search continues. None: there are no more jobs."""
    read: int
    """How many jobs were read at least."""
    is_cut: bool
    """Whether the window ended before the search had found as many jobs as wanted."""


async def search_jobs(
    records: Records, search: JobSearch, codec: BodyCodec, registry: Registry, clock: Clock
) -> FoundJobs:
    """Return the next jobs that match, and where to continue."""
    matches = _matcher(search, codec, registry)
    limit = search.wanted.limit
    jobs: list[Record] = []
    cursors: list[str] = []
    after: str | None = search.after
    read = 0
    until = clock.monotonic() + search.seconds
    portion = _FIRST_PORTION
    # One job more than wanted tells whether more follow.
    while after is not None and len(jobs) <= limit and read < search.window:
        if read and clock.monotonic() >= until:
            break
        rows = min(_PAGE_ROWS, search.window - read)
        many = min(portion, limit + 1 - len(jobs) if matches is None else rows)
        wanted = replace(search.wanted, limit=many)
        page = await records.scan(wanted, after=after, rows=rows)
        portion = _next_portion(portion, page.jobs)
        following, compared = page.after, page.read
        for place, (job, cursor) in enumerate(zip(page.jobs, page.cursors, strict=True), 1):
            if matches is None or matches(job):
                jobs.append(job if search.with_values else _without_values(job))
                cursors.append(cursor)
            if matches is not None and clock.monotonic() >= until:
                following, compared = cursor, place
                break
        after, read = following, read + compared
        await anyio.lowlevel.checkpoint()  # others may run between two portions
    is_cut = after is not None and len(jobs) <= limit
    if len(jobs) > limit:
        after = cursors[limit - 1]
    return FoundJobs(jobs[:limit], cursors[:limit], after, read, is_cut)


def _next_portion(last: int, jobs: Sequence[Record]) -> int:
    """Return how many jobs to read next, so that those of a portion take little memory."""
    size = sum(len(job.body.data) + (len(job.result.data) if job.result else 0) for job in jobs)
    many = _PORTION_BYTES * len(jobs) // size if size else _MAX_PORTION
    return max(_MIN_PORTION, min(many, _GROWTH * last, _MAX_PORTION))


def _without_values(job: Record) -> Record:
    """Return a job without arguments, result and tracebacks."""
    attempts = tuple(replace(one, failure=_without_traceback(one.failure)) for one in job.attempts)
    return replace(
        job,
        body=replace(job.body, data=b""),
        result=None,
        failure=_without_traceback(job.failure),
        attempts=attempts,
    )


def _without_traceback(failure: Failure | None) -> Failure | None:
    return None if failure is None else replace(failure, traceback="", args=None)


def _matcher(
    search: JobSearch, codec: BodyCodec, registry: Registry
) -> Callable[[Record], bool] | None:
    """Return what a job must fulfil beyond the conditions of the store; None for nothing."""
    if search.error is None and search.key is None and not search.arguments:
        return None
    error = (search.error or "").casefold()

    def matches(job: Record) -> bool:
        if error and not any(error in text.casefold() for text in _error_texts(job)):
            return False
        if search.key is not None and search.key not in _keys(job, codec, registry):
            return False
        if not search.arguments:
            return True
        named, text = _arguments(job, codec, registry)
        return all(_has_argument(one, named, text) for one in search.arguments)

    return matches


def _error_texts(job: Record) -> Iterator[str]:
    yield from (job.reason, *(attempt.reason for attempt in job.attempts))
    for failure in (job.failure, *(attempt.failure for attempt in job.attempts)):
        if failure is not None:
            yield failure.line


def _arguments(job: Record, codec: BodyCodec, registry: Registry) -> tuple[Mapping[str, Any], str]:
    """Return the arguments of a job by name, and all of them as text.

    Positional arguments have names only if the application has the task.
    """
    try:
        call = codec.decode(job.body)
    except BadMessage:
        return {}, job.body.data.decode(errors="replace").casefold()
    text = _as_text(call).casefold()
    if not isinstance(call, dict):
        return {}, text
    args, kwargs = call.get("args", ()), call.get("kwargs", {})
    if not isinstance(args, list | tuple) or not isinstance(kwargs, dict):
        return call, text
    task = registry.get(job.task)
    names = [] if task is None else [*task.parameters.signature.parameters]
    named = dict(zip(names, args, strict=False)) | kwargs
    return named, _as_text([*args, kwargs]).casefold()


def _keys(job: Record, codec: BodyCodec, registry: Registry) -> Iterator[str]:
    """Return the unique key of a job and the keys of its routes.

    A store keeps the route of a live job only. Of a finished one, the key is computed from the
    arguments, if the application has the task.
    """
    if job.unique is not None:
        yield job.unique
    for gate in (job.gate or "", *(slot.gate for slot in job.slots)):
        if gate.startswith(ROUTE_PREFIX):
            yield route_key(gate)
    task = registry.get(job.task)
    if task is not None and task.declared.affinity is not None:
        # A function of the application may raise anything, also for arguments of an older version.
        with suppress(Exception):
            args, kwargs = task.parameters.decode(codec.decode(job.body))
            yield token_of(task.declared.affinity, task.parameters, args, kwargs)


def _has_argument(wanted: str, named: Mapping[str, Any], text: str) -> bool:
    name, equals, value = wanted.partition("=")
    if equals and name.isidentifier():
        return name in named and value in (str(named[name]), _as_text(named[name]))
    return wanted.casefold() in text


def _as_text(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=repr).decode()
