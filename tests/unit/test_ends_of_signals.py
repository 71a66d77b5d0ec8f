"""What ends a signal tries again if a worker looks at the signal at that moment."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from umbel.graphs.workflow_nodes import RUNS
from umbel.messages import NodeSpec, Snoozed, State, Succeeded
from umbel.messages.bodies import Body


class FakeRoles:
    """A store with one signal, which a worker looks at first, and which waits then."""

    def __init__(self) -> None:
        self.states = [State.RUNNING, State.CANCELLED]
        self.control = self.joins = self.records = self

    async def cancel(self, jobs: list[str], reason: str) -> dict[str, State]:
        return dict.fromkeys(jobs, self.states.pop(0))

    async def resolve(self, job: str, outcome: object) -> bool:
        return self.states[0] is not State.RUNNING

    async def find(self, job: str) -> Any:
        return SimpleNamespace(state=self.states.pop(0))


class FakeCodec:
    def decode(self, body: Body) -> Any:
        return {"args": [False]}

    def encode(self, value: object, *, what: str) -> Body:
        return Body("application/json", b"false")


@pytest.mark.parametrize("kind", ["release", "timer"])
def test_a_signal_that_a_worker_looks_at_is_ended_later(kind: str) -> None:
    roles: Any = FakeRoles()
    codec: Any = FakeCodec()
    delivery: Any = SimpleNamespace(envelope=SimpleNamespace(body=None))
    spec = NodeSpec(target="signal", label="approved")

    def run() -> Any:
        return asyncio.run(RUNS[kind](roles, codec, delivery, spec, "graph")).outcome

    assert isinstance(run(), Snoozed)
    assert isinstance(run(), Succeeded)
