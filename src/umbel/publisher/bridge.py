"""The only bridge between callers and the application's own event loop.

That loop runs in its own thread. So a caller may be sync or async, in any thread, inside a running
loop of asyncio or Trio, or in a child process: after a fork, the child starts a new loop.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar, cast

import anyio
import anyio.lowlevel

from umbel.backends import Broker, Published, TimedBroker, reentry
from umbel.errors import UmbelError, Unavailable
from umbel.messages import Envelope
from umbel.publisher.publisher import Send

T = TypeVar("T")
Publishing = Coroutine[Any, Any, list[Published]]

_CANCEL_TIMEOUT_SECONDS = 1.0
"""How long a closed loop waits for the calls that it cancels."""


class Bridge:
    """Runs coroutines on an event loop in its own thread, which starts on first use."""

    def __init__(self, level: int = 0) -> None:
        self._level = level
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._forgotten: list[Any] = []
        self.generation = 0
        """The number of forks so far. Connections of an older generation belong to a parent."""
        os.register_at_fork(after_in_child=self._forget)

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop, block until it is done, and return its result.

        Raises:
            TimeoutError: the loop did not answer in time, or was closed; the work is cancelled.
        """
        future = self._submit(work)
        try:
            return _result(future, timeout)
        except BaseException:
            future.cancel()
            raise

    async def arun(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and await it from another loop, of asyncio or Trio.

        If the caller is cancelled, the coroutine is cancelled too.

        Raises:
            TimeoutError: the loop did not answer in time, or was closed; the work is cancelled.
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
        return _result(future)

    def close(self) -> None:
        """Stop the loop and its thread. The next call starts a new loop."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(5)

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if sys.is_finalizing():  # its thread runs no more: the caller would wait for ever
            work.close()
            raise Unavailable("Python is exiting: a finalizer that runs now cannot publish")
        loop = self._start_loop()
        if threading.current_thread() is self._thread:
            work.close()
            raise UmbelError("the bridge was called from its own loop")
        return asyncio.run_coroutine_threadsafe(work, loop)

    def _start_loop(self) -> asyncio.AbstractEventLoop:
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
                else:  # a call in a signal handler or a finalizer was faster
                    loop.call_soon_threadsafe(loop.stop)
            return self._loop

    def _forget(self) -> None:
        # The parent's thread does not exist here, and its lock may be held for ever. Keep them,
        # because collecting a loop or a connection closes it, which would disturb the parent.
        self._forgotten.append((self._lock, self._loop, self._thread))
        self._lock, self._loop, self._thread = threading.RLock(), None, None
        self.generation += 1


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        # A server that does not answer may still hold up a call whose caller has given up.
        if tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks, timeout=_CANCEL_TIMEOUT_SECONDS))
        loop.close()


def _result(future: Future[T], timeout: float | None = None) -> T:
    try:
        return future.result(timeout)
    except CancelledError:
        raise TimeoutError("the event loop was closed") from None


def blocking_send(broker: Broker, bridge: Bridge) -> Send:
    """Return a function that publishes in the caller's thread if possible, or on the bridge."""
    if broker.capabilities.blocking:
        return broker.publish_blocking

    def publish(envelopes: Sequence[Envelope], timeout: float) -> Publishing:
        if broker.capabilities.timed:
            return cast(TimedBroker, broker).publish_with_timeout(envelopes, timeout)
        return broker.publish(envelopes)

    def send(envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        try:
            return bridge.run(publish(envelopes, timeout), timeout)
        except TimeoutError as error:
            if isinstance(error, UmbelError):
                raise
            raise Unavailable("the broker did not answer in time") from None

    return send


def waker() -> Callable[[Callable[[], Any]], None]:
    """Return a function with which other threads run a callback on the current event loop."""
    native: Any = anyio.lowlevel.current_token().native_token
    call_soon = getattr(native, "run_sync_soon", None) or native.call_soon_threadsafe

    def wake(callback: Callable[[], Any]) -> None:
        with suppress(RuntimeError):  # the loop has ended, and its waiting callers with it
            call_soon(callback)

    return wake
