"""The one bridge between callers and the application's own event loop.

A thread of its own runs that loop, so a caller may be sync or async, in any thread, inside a
running loop of asyncio or Trio, or in a child process: after a fork the child makes a new one.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import anyio
import anyio.lowlevel

from umbel.backends import reentry
from umbel.errors import UmbelError

T = TypeVar("T")


class Bridge:
    """Runs coroutines on a loop in a thread of its own, started when first needed."""

    def __init__(self, level: int = 0) -> None:
        self._level = level
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._forgotten: list[Any] = []
        self.generation = 0
        """Grows with every fork; what belongs to an older one must not be touched."""
        os.register_at_fork(after_in_child=self._forget)

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run it there and block until it is done.

        Raises:
            TimeoutError: the loop did not answer in time; the work is cancelled.
        """
        future = self._submit(work)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    async def arun(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run it there and await it here, under asyncio or Trio. Cancelling here cancels there.

        Raises:
            TimeoutError: the loop did not answer in time; the work is cancelled.
        """
        done, wake = anyio.Event(), waker()
        future = self._submit(work)
        future.add_done_callback(lambda _: wake(done.set))
        try:
            with anyio.fail_after(timeout):
                await done.wait()
        finally:
            if not future.done():
                future.cancel()
        return future.result()

    def close(self) -> None:
        """Stop the loop and its thread. The next call starts new ones."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(5)

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        loop = self._started()
        if threading.current_thread() is self._thread:
            work.close()
            raise UmbelError("the bridge was called from its own loop")
        return asyncio.run_coroutine_threadsafe(work, loop)

    def _started(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is not None:
            return loop
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = reentry.thread(_serve, loop, name="umbel-bridge", level=self._level)
                thread.start()
                if self._loop is None:
                    self._thread, self._loop = thread, loop
                else:  # a call inside this one, in a signal handler or a finalizer, was faster
                    loop.call_soon_threadsafe(loop.stop)
            return self._loop

    def _forget(self) -> None:
        # The parent's thread does not exist here and its lock may be held for ever. Kept, not
        # collected: closing a loop or a connection here would disturb the parent's.
        self._forgotten.append((self._lock, self._loop, self._thread))
        self._lock, self._loop, self._thread = threading.RLock(), None, None
        self.generation += 1


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def waker() -> Callable[[Callable[[], Any]], None]:
    """How another thread wakes the event loop this is called in."""
    native: Any = anyio.lowlevel.current_token().native_token
    call_soon = getattr(native, "run_sync_soon", None) or native.call_soon_threadsafe

    def wake(callback: Callable[[], Any]) -> None:
        with suppress(RuntimeError):  # the loop ended meanwhile, and whoever waited with it
            call_soon(callback)

    return wake
