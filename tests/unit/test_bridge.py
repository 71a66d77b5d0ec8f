"""The event loop that runs the calls of other threads."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from umbel.publisher.bridge import Bridge


def test_closing_the_loop_cancels_a_call_and_tells_its_caller() -> None:
    bridge = Bridge()
    has_begun, is_cancelled = threading.Event(), threading.Event()

    async def wait_for_ever() -> None:
        has_begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            is_cancelled.set()

    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(bridge.run, wait_for_ever(), 60.0)
        assert has_begun.wait(10)
        bridge.close()
        with pytest.raises(TimeoutError, match="closed"):
            call.result(10)
    assert is_cancelled.is_set()
