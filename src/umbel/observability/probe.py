"""``--probe HOST:PORT``: a small HTTP server for supervisors.

``/livez``: the event loop and the heartbeat run. ``/readyz``: the worker fetches jobs.
``/metrics``: metrics in Prometheus' text format. The server runs in the worker's own event loop, so
that a blocked event loop does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Protocol

import msgspec

from umbel.clock import Clock
from umbel.errors import ConfigurationError
from umbel.observability.metrics import CONTENT_TYPE, Labels, Metrics

_MAX_REQUEST_BYTES = 8_192
_REQUEST_TIMEOUT_SECONDS = 5.0
_MAX_CONNECTIONS = 64
"""A further connection replaces the oldest: slow clients must not keep a supervisor out."""
_SAMPLE_INTERVAL_SECONDS = 1.0
_MAX_FETCH_AGE_LEASES = 2.0
"""A worker with free slots must have fetched within this many lease lengths."""


class FreeSlots(Protocol):
    """How many more jobs of each kind could start."""

    @property
    def free(self) -> Mapping[str, int]: ...


class ProbedWorker(Protocol):
    """What the probe reads of a worker."""

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
    def heartbeat_alive(self) -> bool: ...
    @property
    def heartbeat_age(self) -> float | None: ...
    def fetches(self) -> int: ...
    def free(self) -> FreeSlots: ...
    def stopping(self) -> bool: ...


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a worker fetches jobs, and the values behind that."""

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


class Sampler:
    """Measures the event loop's lag and notices fetches, once a second."""

    def __init__(self, worker: ProbedWorker, clock: Clock) -> None:
        self._worker = worker
        self._clock = clock
        self._fetches = worker.fetches()
        self._fetched_at: float | None = None
        self.lag = 0.0

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            due = self._clock.monotonic() + _SAMPLE_INTERVAL_SECONDS
            await asyncio.sleep(_SAMPLE_INTERVAL_SECONDS)
            self.lag = max(0.0, self._clock.monotonic() - due)
            self.check_fetches()

    def check_fetches(self) -> None:
        """Record the time if a fetch has returned since the last check."""
        fetches = self._worker.fetches()
        if fetches != self._fetches:
            self._fetches, self._fetched_at = fetches, self._clock.monotonic()

    @property
    def fetch_age(self) -> float | None:
        """Seconds since a fetch returned, accurate to about a second; None if none has."""
        self.check_fetches()
        return None if self._fetched_at is None else self._clock.monotonic() - self._fetched_at


class Probe:
    """Serves the three pages. Invalid requests have no other effect."""

    def __init__(self, worker: ProbedWorker, metrics: Metrics, clock: Clock) -> None:
        self._worker = worker
        self._metrics = metrics
        self._sampler = Sampler(worker, clock)
        self._sampling: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self._serving: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}
        """The open connections, oldest first."""
        metrics.add_gauge(self._gauges)

    async def start(self, host: str, port: int) -> int:
        """Start to serve; return the port. For port 0 the system chooses one.

        Raises:
            ConfigurationError: the process cannot listen at the address.
        """
        try:
            self._server = await asyncio.start_server(
                self._serve, host, port, limit=_MAX_REQUEST_BYTES
            )
        except OSError as error:
            raise ConfigurationError(
                f"--probe {host}:{port}: {error.strerror or error}; give another address"
            ) from None
        self._sampling = asyncio.create_task(self._sampler.run(), name="umbel probe sampler")
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop serving and close all connections."""
        if self._server is not None:
            self._server.close()
        tasks = [*self._serving, *([self._sampling] if self._sampling else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- readiness ---------------------------------------------------------------------------

    def readiness(self) -> Readiness:
        """Return whether the worker fetches jobs now."""
        worker, fetch_age = self._worker, self._sampler.fetch_age
        unreachable = tuple(self._metrics.unreachable)
        reasons = list(self._find_problems(fetch_age, unreachable))
        return Readiness(
            ready=not reasons,
            why=tuple(reasons),
            worker=worker.name,
            incarnation=worker.incarnation,
            running=worker.running,
            paused=worker.paused,
            stopping=worker.stopping(),
            last_beat=_round(worker.heartbeat_age),
            last_fetch=_round(fetch_age),
            loop_lag=round(self._sampler.lag, 4),
            unreachable=unreachable,
        )

    def _find_problems(self, fetch_age: float | None, unreachable: Iterable[str]) -> Iterable[str]:
        worker = self._worker
        heartbeat_age, lease, free = worker.heartbeat_age, worker.lease, worker.free()
        if worker.stopping():
            yield "stopping"
        if not worker.heartbeat_alive:
            yield "the heartbeat thread has stopped"
        elif heartbeat_age is None:
            yield "no heartbeat yet"
        elif heartbeat_age > lease:
            yield "the last heartbeat is too long ago"
        # A worker without free slots does not fetch, and is ready.
        if any(free.free.values()):
            if fetch_age is None:
                yield "no fetch yet"
            elif fetch_age > lease * _MAX_FETCH_AGE_LEASES:
                yield "the last fetch is too long ago"
        yield from (f"{service}: the server cannot be reached" for service in unreachable)

    def _gauges(self) -> Iterable[tuple[str, Labels, float]]:
        worker, free = self._worker, self._worker.free()
        yield "umbel_running", (), worker.running
        for kind, many in free.free.items():
            yield "umbel_free_slots", (("kind", kind),), many
        yield "umbel_paused", (), len(worker.paused)
        yield "umbel_stopping", (), float(worker.stopping())
        yield "umbel_loop_lag_seconds", (), self._sampler.lag
        if worker.heartbeat_age is not None:
            yield "umbel_last_beat_seconds", (), worker.heartbeat_age
        if (fetch_age := self._sampler.fetch_age) is not None:
            yield "umbel_last_fetch_seconds", (), fetch_age

    # --- HTTP --------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._limit_connections()
        self._serving[task] = writer
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_SECONDS):
                writer.write(self._respond(await _read_request(reader)))
                await writer.drain()
        except (OSError, TimeoutError):
            pass  # the client is slow or has disconnected
        finally:
            self._serving.pop(task, None)
            writer.close()
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(1):
                    await writer.wait_closed()

    def _limit_connections(self) -> None:
        """Close the oldest connection if there are too many."""
        if len(self._serving) >= _MAX_CONNECTIONS:
            oldest = next(iter(self._serving))
            self._serving.pop(oldest).transport.abort()
            oldest.cancel()

    def _respond(self, request: tuple[str, str] | None) -> bytes:
        if request is None:
            return _make_response(HTTPStatus.BAD_REQUEST, {"error": "not an HTTP request"})
        method, path = request
        status, content, kind = self._page(path)
        if status is not HTTPStatus.NOT_FOUND and method not in ("GET", "HEAD"):
            return _make_response(HTTPStatus.METHOD_NOT_ALLOWED, {"error": "GET only"})
        return _make_response(status, content, kind, body=method != "HEAD")

    def _page(self, path: str) -> tuple[HTTPStatus, Any, str]:
        match path.partition("?")[0]:
            case "/livez":
                alive = self._worker.heartbeat_alive
                return _to_status(alive), {"alive": alive}, "application/json"
            case "/readyz":
                found = self.readiness()
                return _to_status(found.ready), found, "application/json"
            case "/metrics":
                return HTTPStatus.OK, self._metrics.render(), CONTENT_TYPE
            case _:
                pages = ["/livez", "/readyz", "/metrics"]
                return HTTPStatus.NOT_FOUND, {"error": "no such page", "pages": pages}, ""


def _to_status(is_ok: bool) -> HTTPStatus:
    return HTTPStatus.OK if is_ok else HTTPStatus.SERVICE_UNAVAILABLE


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, str] | None:
    """Return method and path; None if it is not an HTTP request or is too large."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        return None
    return words[0], words[1]


def _make_response(status: HTTPStatus, content: Any, kind: str = "", *, body: bool = True) -> bytes:
    data = content.encode() if isinstance(content, str) else msgspec.json.encode(content) + b"\n"
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: {kind or 'application/json'}\r\n"
        f"Content-Length: {len(data)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (data if body else b"")


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
