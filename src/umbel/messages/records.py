"""What is remembered of a job: the read model behind handles, the CLI and operations."""

from __future__ import annotations

import msgspec

from umbel.messages.bodies import Body
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
