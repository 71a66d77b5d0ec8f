"""What is remembered of a job: the read model behind handles, the CLI and operations."""

from __future__ import annotations

import msgspec

from umbel.messages.bodies import Body
from umbel.messages.envelopes import Document
from umbel.messages.gates import Slot
from umbel.messages.leases import Attempt, Failure
from umbel.messages.states import State


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One job, live or finished, as the store tells it."""

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
    """Where it waits."""
    ahead: int | None = None
    """Who stands before it there, of its queue and kind, counted to a thousand. None where nobody
    counted: in lists, and while its task is paused."""
    slots: tuple[Slot, ...] = ()
    """What it holds of the gates it has passed, while it lives."""
    unique: str | None = None
    traceparent: str | None = None
    headers: dict[str, str] = {}

    @property
    def waited(self) -> float | None:
        """Seconds from when it could have run until it first did; None before that."""
        if not self.attempts:
            return None
        due = max(self.created, self.not_before or 0.0)
        return max(0.0, self.attempts[0].started - due)

    @property
    def waiting_since(self) -> float | None:
        """From when on only its gates kept it from running, as far as its story tells.

        One that was replayed without ever having run waits since it was published.
        """
        if self.gate is None:
            return None
        told = self.attempts[-1].finished if self.attempts else 0.0
        return max(self.created, self.not_before or 0.0, told)

    @property
    def ran(self) -> float:
        """Seconds that its attempts took, without what it waited between them."""
        return sum(max(0.0, one.finished - one.started) for one in self.attempts)

    @property
    def document(self) -> Document | None:
        """The result as a message of its own, about the task; None when there is none."""
        if self.result is None or self.finished is None:
            return None
        return Document(id=self.id, subject=self.task, body=self.result, created=self.finished)
