"""The bell: hints reach those who asked, and none between clear and wait is lost."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from umbel.backends.notifier import Notifier


def test_a_ring_wakes_those_who_listen_to_the_topic_and_no_others() -> None:
    async def story() -> None:
        bell = Notifier()
        with bell.listen(["a"]) as first, bell.listen(["b"]) as second:
            bell.notify("a")
            assert await first.wait(0)
            assert not await second.wait(0)

    asyncio.run(story())


def test_an_ear_hears_all_its_topics() -> None:
    async def story() -> None:
        bell = Notifier()
        with bell.listen(["a", "b", "c"]) as ear:
            bell.notify("a")
            bell.notify("b")
            assert ear.clear() == {"a", "b"}
            assert ear.clear() == set()

    asyncio.run(story())


def test_a_ring_between_clear_and_wait_is_not_lost() -> None:
    async def story() -> None:
        bell = Notifier()
        with bell.listen(["a"]) as ear:
            ear.clear()
            bell.notify("a")
            assert await ear.wait(None)

    asyncio.run(story())


def test_a_cleared_ear_waits_again() -> None:
    async def story() -> None:
        bell = Notifier()
        with bell.listen(["a"]) as ear:
            bell.notify("a")
            ear.clear()
            assert not await ear.wait(0.01)

    asyncio.run(story())


def test_a_ring_wakes_one_who_waits() -> None:
    async def story() -> None:
        bell = Notifier()
        with bell.listen(["a"]) as ear:
            waiting = asyncio.create_task(ear.wait(30))
            await asyncio.sleep(0)
            bell.notify("a")
            assert await waiting

    asyncio.run(story())


def test_ring_all_wakes_everybody() -> None:
    async def story() -> None:
        bell = Notifier()
        with bell.listen(["a"]) as first, bell.listen(["b", "c"]) as second:
            bell.notify_all()
            assert await first.wait(0)
            assert second.clear() == {"b", "c"}

    asyncio.run(story())


def test_a_ring_without_listeners_is_forgotten() -> None:
    async def story() -> None:
        bell = Notifier()
        bell.notify("a")
        with bell.listen(["a"]) as ear:
            assert not await ear.wait(0)

    asyncio.run(story())


def test_an_ear_hears_nothing_after_its_block_even_when_that_raised() -> None:
    async def story() -> None:
        bell = Notifier()
        ears = []
        with suppress(RuntimeError), bell.listen(["a"]) as ear:
            ears.append(ear)
            raise RuntimeError
        bell.notify("a")
        bell.notify_all()
        assert ears[0].topics == set()

    asyncio.run(story())


def test_two_ears_for_one_topic_come_and_go_apart() -> None:
    async def story() -> None:
        bell = Notifier()
        with bell.listen(["a"]) as first:
            with bell.listen(["a"]):
                pass
            bell.notify("a")
            assert await first.wait(0)

    asyncio.run(story())
