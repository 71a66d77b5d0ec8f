"""What is remembered of a job: the read model behind handles, the CLI and operations."""

from __future__ import annotations

import msgspec

from umbel.messages.bodies import Body
from umbel.messages.envelopes import Document
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
    unique: str | None = None
    traceparent: str | None = None
    headers: dict[str, str] = {}

    @property
    def document(self) -> Document | None:
        """The result as a message of its own, about the task; None when there is none."""
        if self.result is None or self.finished is None:
            return None
        return Document(id=self.id, subject=self.task, body=self.result, created=self.finished)
