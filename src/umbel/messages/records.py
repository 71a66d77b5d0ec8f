"""The record of a job, which handles, the CLI and operations read."""

from __future__ import annotations

import msgspec

from umbel.messages.bodies import Body
from umbel.messages.envelopes import Document
from umbel.messages.gates import Slot
from umbel.messages.leases import Attempt, Failure
from umbel.messages.states import State


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One job, live or finished, as the store returns it."""

    id: str
    task: str
    namespace: str
    queue: str
    state: State
    kind: str = ""
    priority: int = 0
    attempt: int = 1
    deaths: int = 0
    created: float
    not_before: float | None = None
    expires: float | None = None
    started: float | None = None
    finished: float | None = None
    worker: str | None = None
    body: Body
    result: Body | None = None
    failure: Failure | None = None
    reason: str = ""
    attempts: tuple[Attempt, ...] = ()
    progress: tuple[float, float | None] | None = None
    gate: str | None = None
    """The gate at which it waits."""
    ahead: int | None = None
    """How many jobs of its queue and kind wait before it there, up to a thousand. None where it
    is not counted: in lists, and while its task is paused."""
    slots: tuple[Slot, ...] = ()
    """The slots that it holds in gates, while it is live."""
    unique: str | None = None
    traceparent: str | None = None
    headers: dict[str, str] = {}

    @property
    def waited(self) -> float | None:
        """Seconds from when it could have run until its first run started; None before that."""
        if not self.attempts:
            return None
        due = max(self.created, self.not_before or 0.0)
        return max(0.0, self.attempts[0].started - due)

    @property
    def waiting_since(self) -> float | None:
        """Since when only its gates have kept it from running, by its history.

        For a job that was replayed before its first run, this is when it was published.
        """
        if self.gate is None:
            return None
        last_run = self.attempts[-1].finished if self.attempts else 0.0
        return max(self.created, self.not_before or 0.0, last_run)

    @property
    def ran(self) -> float:
        """Seconds that its attempts took, without the waits between them."""
        return sum(max(0.0, one.finished - one.started) for one in self.attempts)

    @property
    def document(self) -> Document | None:
        """The result as a document about the task; None if there is no result."""
        if self.result is None or self.finished is None:
            return None
        return Document(id=self.id, subject=self.task, body=self.result, created=self.finished)
