"""Jobs whose sender did not know the kind of their task."""

from __future__ import annotations

from umbel.backends import Demand
from umbel.testing.actions import claim, ids, publish, register
from umbel.testing.backend import Adapters, backend_test


class Sorting:
    """``sort``: a worker that has the task sets the kind."""

    @backend_test()
    async def test_a_sorted_job_needs_room_of_its_own_kind_only(self, b: Adapters) -> None:
        sent = await publish(b, kind="")
        assert await b.broker.assign_kinds(["default"], {"tests.add": "io"}) == 1
        got = await claim(b, await register(b), Demand.of(io=1))
        assert ids(got) == [sent.id]
        assert got[0].envelope.kind == "io"

    @backend_test()
    async def test_other_tasks_queues_and_kinds_are_left_alone(self, b: Adapters) -> None:
        await publish(b, kind="")
        await publish(b, kind="cpu")
        assert await b.broker.assign_kinds(["default"], {"tests.other": "io"}) == 0
        assert await b.broker.assign_kinds(["mail"], {"tests.add": "io"}) == 0
        assert await b.broker.assign_kinds(["default"], {"tests.add": "io"}) == 1
        got = await claim(b, await register(b), Demand.of(io=5, cpu=5))
        assert sorted(one.envelope.kind for one in got) == ["cpu", "io"]
