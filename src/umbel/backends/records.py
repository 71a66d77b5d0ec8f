"""The role that remembers jobs, live and finished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from umbel.errors import ConfigurationError
from umbel.messages import Body, Record, State


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to list. ``None``, and no states, do not restrict.

    Raises:
        ConfigurationError: a name is empty. It would be taken for "all" too easily.
    """

    states: tuple[State, ...] = ()
    task: str | None = None
    queue: str | None = None
    worker: str | None = None
    published_before: float | None = None
    """Wall time. A job whose time of publication is in the future, which is wrong, matches too."""
    limit: int = 50

    def __post_init__(self) -> None:
        for field in ("task", "queue", "worker"):
            name = getattr(self, field)
            if name is not None and not name.strip():
                raise ConfigurationError(
                    f"{field}={name!r} of a job filter is empty: give the name of a {field}, or"
                    " leave it out for all"
                )


class ProgressNote(msgspec.Struct, frozen=True):
    """How far a running job says it is."""

    job: str
    fence: int
    done: float
    of: float | None


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be different in a job that is queued anew. None leaves it as it was."""

    task: str | None = None
    kind: str | None = None
    queue: str | None = None
    priority: int | None = None
    body: Body | None = None
    from_scratch: bool = False
    """Whether its steps are forgotten, so that all of them run again."""


UNCHANGED = Changes()


class Records(Protocol):
    """Reads and keeps job records."""

    async def find(self, job: str) -> Record:
        """One job, live or finished. Raises UnknownJob."""

    async def search(self, wanted: JobFilter) -> list[Record]:
        """The newest jobs that match, newest first."""

    async def finished(self, job: str, timeout: float | None) -> Record:
        """Wait until the job is final, woken by push; a slow look remains as a safety net.

        Raises:
            UnknownJob: no such job. ResultTimeout: not final in time.
        """

    async def progress(self, notes: Sequence[ProgressNote]) -> None:
        """Note how far running jobs are. A note under an old fencing number changes nothing."""

    async def replay(self, jobs: Sequence[str], changes: Changes = UNCHANGED) -> list[str]:
        """Queue finished jobs anew, with their id, story and steps; attempts start over.

        The payload is the old one but for the ``changes``, which are made in the same step.

        Jobs that succeeded or still live are left alone. Returns the ids that were queued. A
        crash leaves each job either final or queued.
        """

    async def prune(self, *, older_than: float, keep: int, limit: int) -> int:
        """Forget jobs that finished ``older_than`` seconds ago or before, by the store's clock, and
        the oldest beyond ``keep``, with their steps.

        Buried jobs are never pruned: somebody has to look at them. At most ``limit`` a call;
        returns how many.

        Gates of tokens whose rate is not felt any more are forgotten too, a portion a call.
        """

    async def remove(self, jobs: Sequence[str]) -> int:
        """Forget these finished jobs and their steps, buried ones included. Returns how many."""

    async def close(self) -> None:
        """Free connections. Closing twice is fine."""


@runtime_checkable
class PromptRecords(Protocol):
    """Records that a caller's own thread can look at, without an event loop."""

    def look(self, job: str, timeout: float) -> Record | None:
        """The record of a job that is final by now; None: it lives, or nobody knows it.

        Whoever publishes goes first: None as well where it would have to wait for others.

        Raises:
            Unavailable: no answer in time.
        """
