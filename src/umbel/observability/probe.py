"""``--probe HOST:PORT``: a very small HTTP server for supervisors.

``/livez``: the event loop answers and the heart lives. ``/readyz``: work is being consumed.
``/metrics``: Prometheus' text format. It runs in the worker's own event loop, on purpose: a loop
that is blocked does not answer, which is the honest answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Protocol

import msgspec

from umbel.clock import Clock
from umbel.errors import ConfigurationError
from umbel.observability.metrics import CONTENT_TYPE, Labels, Metrics

_LARGEST = 8_192
_PATIENCE = 5.0
_AT_ONCE = 64
"""Connections at once. The next one takes the place of the oldest: a client that is slow must not
keep a supervisor from its answer."""
_PULSE = 1.0
_RECENT_FETCH = 2.0
"""Lease lengths after which a worker with free slots should have fetched."""


class Room(Protocol):
    """How much more could start."""

    @property
    def io(self) -> int: ...
    @property
    def cpu(self) -> int: ...


class Subject(Protocol):
    """What the probe asks a worker. Everything is read only."""

    @property
    def name(self) -> str: ...
    @property
    def incarnation(self) -> str: ...
    @property
    def running(self) -> int: ...
    @property
    def paused(self) -> tuple[str, ...]: ...
    @property
    def lease(self) -> float: ...
    @property
    def heart_alive(self) -> bool: ...
    @property
    def beat_age(self) -> float | None: ...
    def fetches(self) -> int: ...
    def free(self) -> Room: ...
    def stopping(self) -> bool: ...


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a worker consumes, and what that is judged by."""

    ready: bool
    why: tuple[str, ...]
    worker: str
    incarnation: str
    running: int
    paused: tuple[str, ...]
    stopping: bool
    last_beat: float | None
    last_fetch: float | None
    loop_lag: float
    unreachable: tuple[str, ...]


class Pulse:
    """Samples the event loop and the fetches once a second, while a probe is wanted."""

    def __init__(self, subject: Subject, clock: Clock) -> None:
        self._subject = subject
        self._clock = clock
        self._fetches = subject.fetches()
        self._fetched: float | None = None
        self.lag = 0.0

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            due = self._clock.monotonic() + _PULSE
            await asyncio.sleep(_PULSE)
            self.lag = max(0.0, self._clock.monotonic() - due)
            self.look()

    def look(self) -> None:
        """Note whether a fetch has returned since the last look."""
        fetches = self._subject.fetches()
        if fetches != self._fetches:
            self._fetches, self._fetched = fetches, self._clock.monotonic()

    @property
    def fetch_age(self) -> float | None:
        """Seconds since a fetch was seen to return, to about a second; None: never."""
        self.look()
        return None if self._fetched is None else self._clock.monotonic() - self._fetched


class Probe:
    """Serves the three pages; garbage on the socket harms nobody."""

    def __init__(self, subject: Subject, metrics: Metrics, clock: Clock) -> None:
        self._subject = subject
        self._metrics = metrics
        self._pulse = Pulse(subject, clock)
        self._pulsing: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self._serving: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}
        """By when they connected, oldest first."""
        metrics.watch(self._gauges)

    async def start(self, host: str, port: int) -> int:
        """Serve from now on; returns the port, which a port of 0 leaves to the system.

        Raises:
            ConfigurationError: the address cannot be had.
        """
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=_LARGEST)
        except OSError as error:
            raise ConfigurationError(
                f"--probe {host}:{port}: {error.strerror or error}; give another address"
            ) from None
        self._pulsing = asyncio.create_task(self._pulse.run(), name="umbel probe pulse")
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Serve no more."""
        if self._server is not None:
            self._server.close()
        tasks = [*self._serving, *([self._pulsing] if self._pulsing else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- judgement ---------------------------------------------------------------------------

    def readiness(self) -> Readiness:
        """Whether the worker consumes right now."""
        subject, fetch_age = self._subject, self._pulse.fetch_age
        unreachable = tuple(self._metrics.unreachable)
        why = list(self._objections(fetch_age, unreachable))
        return Readiness(
            ready=not why,
            why=tuple(why),
            worker=subject.name,
            incarnation=subject.incarnation,
            running=subject.running,
            paused=subject.paused,
            stopping=subject.stopping(),
            last_beat=_rounded(subject.beat_age),
            last_fetch=_rounded(fetch_age),
            loop_lag=round(self._pulse.lag, 4),
            unreachable=unreachable,
        )

    def _objections(self, fetch_age: float | None, unreachable: Iterable[str]) -> Iterable[str]:
        subject = self._subject
        beat, lease, free = subject.beat_age, subject.lease, subject.free()
        if subject.stopping():
            yield "stopping"
        if not subject.heart_alive:
            yield "the heart does not beat"
        elif beat is None:
            yield "no heartbeat yet"
        elif beat > lease:
            yield "the last heartbeat is too long ago"
        # A worker that is full does not fetch, and is as ready as can be.
        if free.io or free.cpu:
            if fetch_age is None:
                yield "nothing fetched yet"
            elif fetch_age > lease * _RECENT_FETCH:
                yield "the last fetch is too long ago"
        yield from (f"{service}: the server cannot be reached" for service in unreachable)

    def _gauges(self) -> Iterable[tuple[str, Labels, float]]:
        subject, free = self._subject, self._subject.free()
        yield "umbel_running", (), subject.running
        yield "umbel_free_slots", (("kind", "io"),), free.io
        yield "umbel_free_slots", (("kind", "cpu"),), free.cpu
        yield "umbel_paused", (), len(subject.paused)
        yield "umbel_stopping", (), float(subject.stopping())
        yield "umbel_loop_lag_seconds", (), self._pulse.lag
        if subject.beat_age is not None:
            yield "umbel_last_beat_seconds", (), subject.beat_age
        if (fetch_age := self._pulse.fetch_age) is not None:
            yield "umbel_last_fetch_seconds", (), fetch_age

    # --- HTTP --------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._make_room()
        self._serving[task] = writer
        try:
            async with asyncio.timeout(_PATIENCE):
                writer.write(self._respond(await _request(reader)))
                await writer.drain()
        except (OSError, TimeoutError):
            pass  # a client that is slow or gone has no claim to an answer
        finally:
            self._serving.pop(task, None)
            writer.close()
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(1):
                    await writer.wait_closed()

    def _make_room(self) -> None:
        """Hang up on the oldest connection when there are too many."""
        if len(self._serving) >= _AT_ONCE:
            oldest = next(iter(self._serving))
            self._serving.pop(oldest).transport.abort()
            oldest.cancel()

    def _respond(self, request: tuple[str, str] | None) -> bytes:
        if request is None:
            return _response(HTTPStatus.BAD_REQUEST, {"error": "not an HTTP request"})
        method, path = request
        status, content, kind = self._page(path)
        if status is not HTTPStatus.NOT_FOUND and method not in ("GET", "HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, {"error": "GET only"})
        return _response(status, content, kind, body=method != "HEAD")

    def _page(self, path: str) -> tuple[HTTPStatus, Any, str]:
        match path.partition("?")[0]:
            case "/livez":
                alive = self._subject.heart_alive
                return _status(alive), {"alive": alive}, "application/json"
            case "/readyz":
                found = self.readiness()
                return _status(found.ready), found, "application/json"
            case "/metrics":
                return HTTPStatus.OK, self._metrics.render(), CONTENT_TYPE
            case _:
                pages = ["/livez", "/readyz", "/metrics"]
                return HTTPStatus.NOT_FOUND, {"error": "no such page", "pages": pages}, ""


def _status(fine: bool) -> HTTPStatus:
    return HTTPStatus.OK if fine else HTTPStatus.SERVICE_UNAVAILABLE


async def _request(reader: asyncio.StreamReader) -> tuple[str, str] | None:
    """Method and path; None when it is no HTTP or too large."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        return None
    return words[0], words[1]


def _response(status: HTTPStatus, content: Any, kind: str = "", *, body: bool = True) -> bytes:
    data = content.encode() if isinstance(content, str) else msgspec.json.encode(content) + b"\n"
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: {kind or 'application/json'}\r\n"
        f"Content-Length: {len(data)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (data if body else b"")


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
