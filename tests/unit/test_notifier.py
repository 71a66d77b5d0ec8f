"""The bell: hints reach those who asked, and none between clear and wait is lost."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from umbel.backends.notifier import Notifier


def test_a_notification_wakes_the_listeners_of_its_topic_and_no_others() -> None:
    async def story() -> None:
        bell = Notifier()
        with bell.listen(["a"]) as first, bell.listen(["b"]) as second:
            bell.notify("a")
            assert await first.wait(0)
            assert not await second.wait(0)

    asyncio.run(story())


def test_a_listener_receives_all_its_topics() -> None:
    async def story() -> None:
        bell = Notifier()
        with bell.listen(["a", "b", "c"]) as ear:
            bell.notify("a")
            bell.notify("b")
            assert ear.clear() == {"a", "b"}
            assert ear.clear() == set()

    asyncio.run(story())


def test_a_notification_between_clear_and_wait_is_not_lost() -> None:
    async def story() -> None:
        bell = Notifier()
        with bell.listen(["a"]) as ear:
            ear.clear()
            bell.notify("a")
            assert await ear.wait(None)

    asyncio.run(story())


def test_a_cleared_listener_waits_again() -> None:
    async def story() -> None:
        bell = Notifier()
        with bell.listen(["a"]) as ear:
            bell.notify("a")
            ear.clear()
            assert not await ear.wait(0.01)

    asyncio.run(story())


def test_a_notification_wakes_a_waiting_listener() -> None:
    async def story() -> None:
        bell = Notifier()
        with bell.listen(["a"]) as ear:
            waiting = asyncio.create_task(ear.wait(30))
            await asyncio.sleep(0)
            bell.notify("a")
            assert await waiting

    asyncio.run(story())


def test_notify_all_wakes_every_listener() -> None:
    async def story() -> None:
        bell = Notifier()
        with bell.listen(["a"]) as first, bell.listen(["b", "c"]) as second:
            bell.notify_all()
            assert await first.wait(0)
            assert second.clear() == {"b", "c"}

    asyncio.run(story())


def test_a_notification_without_listeners_is_dropped() -> None:
    async def story() -> None:
        bell = Notifier()
        bell.notify("a")
        with bell.listen(["a"]) as ear:
            assert not await ear.wait(0)

    asyncio.run(story())


def test_a_listener_receives_nothing_after_its_block_even_if_that_raised() -> None:
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


def test_two_listeners_for_one_topic_are_independent() -> None:
    async def story() -> None:
        bell = Notifier()
        with bell.listen(["a"]) as first:
            with bell.listen(["a"]):
                pass
            bell.notify("a")
            assert await first.wait(0)

    asyncio.run(story())
