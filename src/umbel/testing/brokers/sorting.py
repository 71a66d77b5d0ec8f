"""Topic: jobs whose sender did not know what kind of task they are for."""

from __future__ import annotations

from umbel.backends import Demand
from umbel.testing.acts import enlist, ids, publish, take
from umbel.testing.backend import Backend, story


class Sorting:
    """``sort``: somebody who has the task says what kind it is."""

    @story()
    async def test_a_sorted_job_needs_room_of_its_own_kind_only(self, b: Backend) -> None:
        sent = await publish(b, kind="")
        assert await b.broker.sort(["default"], {"tests.add": "io"}) == 1
        got = await take(b, await enlist(b), Demand(io=1, cpu=0))
        assert ids(got) == [sent.id]
        assert got[0].envelope.kind == "io"

    @story()
    async def test_other_tasks_queues_and_kinds_are_left_alone(self, b: Backend) -> None:
        await publish(b, kind="")
        await publish(b, kind="cpu")
        assert await b.broker.sort(["default"], {"tests.other": "io"}) == 0
        assert await b.broker.sort(["mail"], {"tests.add": "io"}) == 0
        assert await b.broker.sort(["default"], {"tests.add": "io"}) == 1
        got = await take(b, await enlist(b), Demand(io=5, cpu=5))
        assert sorted(one.envelope.kind for one in got) == ["cpu", "io"]
