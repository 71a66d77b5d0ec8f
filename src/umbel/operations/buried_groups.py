"""Groups buried jobs by task and error, so that one fault with many jobs is one line."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

import msgspec

from umbel.messages import Record

_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|\d+|'[^']*'|\"[^\"]*\"")
_MAX_SHAPE = 200
_MAX_MATCHED = 4_000
"""Characters of an error in which numbers, ids and quotes are replaced."""
_SAMPLES = 3


class BuriedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The buried jobs of one task with one error."""

    task: str
    error: str
    """The error without what differs from job to job: numbers, ids, quotes."""
    key: str
    """Names the group without its text."""
    count: int
    first: float
    """When the first of them was buried."""
    last: float
    samples: tuple[str, ...]
    """The ids of the newest."""


def error_shape(record: Record) -> str:
    """Return the error of a job without what differs from job to job: numbers, ids, quotes."""
    if record.failure is None:
        return _VARIABLE.sub("…", record.reason[:_MAX_MATCHED])[:_MAX_SHAPE]
    kind, _, message = record.failure.line.partition(": ")
    return f"{kind}: {_VARIABLE.sub('…', message[:_MAX_MATCHED])}"[:_MAX_SHAPE]


def group_key(record: Record) -> str:
    """Return what names the group of a buried job, without its text."""
    text = f"{record.task}\0{error_shape(record)}"
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def group_buried(jobs: Iterable[Record]) -> list[BuriedGroup]:
    """Return the groups of these jobs, largest first."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for job in jobs:
        groups.setdefault((job.task, error_shape(job)), []).append(job)
    found = [
        BuriedGroup(
            task=task,
            error=shape,
            key=group_key(members[0]),
            count=len(members),
            first=min(job.finished or 0.0 for job in members),
            last=max(job.finished or 0.0 for job in members),
            samples=tuple(job.id for job in members[:_SAMPLES]),
        )
        for (task, shape), members in groups.items()
    ]
    return sorted(found, key=lambda group: -group.count)
