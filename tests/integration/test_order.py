"""Which queue a worker takes from first."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from integration.conftest import Place, working
from integration.running import DEADLINE
from umbel.router import Experience, Load


def test_the_queue_with_the_shortest_jobs_is_first(place: Place) -> None:
    """The order uses the run times in the records of earlier workers."""
    app, ran = place.app(), list[str]()

    @app.task(queue="a-long")
    async def long() -> None:
        ran.append("long")
        await asyncio.sleep(0.05)

    @app.task(queue="b-short")
    async def short() -> None:
        ran.append("short")

    with working(app):
        for task in (long, short):
            task.delay().get(timeout=DEADLINE)
    ran.clear()
    handles = app.publish_many([long.s(), short.s(), long.s(), short.s()])
    with working(app, order="short-first", io=1):
        for handle in handles:
            handle.get(timeout=DEADLINE)
    assert ran == ["short", "short", "long", "long"]


def test_a_function_of_the_users_says_the_order(place: Place) -> None:
    app, ran, asked = place.app(), list[str](), list[tuple[str, ...]]()

    def backwards(
        queues: Sequence[str], known: Mapping[str, Experience], load: Load
    ) -> Sequence[str]:
        asked.append(tuple(queues))
        return sorted(queues, reverse=True)

    @app.task(queue="a")
    async def first() -> None:
        ran.append("a")

    @app.task(queue="z")
    async def last() -> None:
        ran.append("z")

    handles = app.publish_many([first.s(), last.s()])
    with working(app, order=backwards, io=1):
        for handle in handles:
            handle.get(timeout=DEADLINE)
    assert ran == ["z", "a"]
    assert {*asked} == {("a", "default", "z")}
