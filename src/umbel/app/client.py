"""The application's counter for callers: publishes for tasks, answers for handles.

Messages are published in the caller's own thread; what is waited for runs on the bridge's loop.
The adapters are the desk's own. After a fork the child opens new ones; the parent's are left
alone. A call inside another call of the same thread, in a signal handler or a finalizer, is
published by other adapters in another thread: see ``Reentrant``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar, cast

import anyio
import msgspec

from umbel.app.backlogs import backlog, load_backlog
from umbel.app.exiting import close_at_exit
from umbel.app.inbox import addressed
from umbel.app.reentrant import Reentrant
from umbel.backends import (
    Backend,
    BlockingBroker,
    Broker,
    PromptRecords,
    Published,
    Roles,
    Routes,
    Seat,
    TimedBroker,
    reentry,
)
from umbel.backends.backlog import Backlog, Held
from umbel.backends.caller_connections import unwrap
from umbel.clock import Clock
from umbel.configuration import Settings
from umbel.errors import (
    ConfigurationError,
    PublishTimeout,
    ResultTimeout,
    UmbelError,
    Unavailable,
    UnknownJob,
)
from umbel.keys import KeyFile
from umbel.messages import BodyCodec, Envelope, Record
from umbel.publisher import (
    Bridge,
    Builder,
    Forwarder,
    Publisher,
    ReentrantForwarder,
    Send,
    waker,
)
from umbel.resilience import Backoff
from umbel.tasks import Handle, Signature, inside, running
from umbel.tasks.handle import Told
from umbel.telemetry import Telemetry, events

_log = logging.getLogger("umbel")
T = TypeVar("T")
Publishing = Coroutine[Any, Any, list[Published]]
_LOOK = 0.1
"""Seconds that a look for a record may take before it is waited for as ever."""
_GRACE = 0.1
"""Seconds after its timeout that a store may take to say that a job is not finished."""
_LOOKS = Backoff(first=0.02, factor=1.5, cap=0.25, jitter=0.0)
"""Pauses between looks for a message in the backlog."""


class Opened(NamedTuple):
    """What a desk has open, since a fork or from the start."""

    generation: int
    backend: Roles
    publisher: Publisher
    forwarder: Forwarder | None
    look: Callable[[str, float], Record | None] | None
    """How a caller that blocks finds a job that is final, if it can do that in its own thread."""


class Client:
    """Implements the Outlet of tasks and the Jobs of handles."""

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        codec: BodyCodec,
        clock: Clock,
        telemetry: Telemetry | None = None,
        keys: KeyFile | None = None,
    ) -> None:
        self.codec = codec
        self.bridge = Bridge()
        self._backend_of_urls = backend
        self._settings = settings
        self._clock = clock
        self._telemetry = telemetry or Telemetry()
        self._builder = Builder(codec, settings.namespace, clock, keys)
        self._opened: Opened | None = None
        self._forgotten: list[Any] = []
        self._warned: set[str] = set()
        self._opening = threading.RLock()
        self._backlogs: dict[int, Backlog | None] = {}
        """What the calls of one generation share, at every level."""
        self._reentrant: dict[tuple[int, int], Reentrant] = {}
        """By generation and level."""
        load_backlog(settings)
        os.register_at_fork(after_in_child=self._forget_lock)

    # --- Outlet ------------------------------------------------------------------------------

    def send(self, signatures: Sequence[Signature[Any]]) -> list[Handle[Any]]:
        """Publish from sync code: inside the caller's transaction, or in one of our own."""
        if not signatures:
            return []
        if _names_workers(signatures):
            signatures = addressed(signatures, self._seats())
        envelopes = self._builder.build(signatures, inside.get())
        connection = self._connection(signatures)
        if connection is None and self._held(signatures, envelopes):
            published = [Published(envelope.id) for envelope in envelopes]
        elif connection is not None:
            broker = self._backend().broker
            published = broker.publish_within(envelopes, unwrap(connection))
        else:
            published = self._publish(envelopes)
        return self._handles(signatures, published)

    async def asend(self, signatures: Sequence[Signature[Any]]) -> list[Handle[Any]]:
        """Publish from async code."""
        if not signatures:
            return []
        if _names_workers(signatures):
            signatures = addressed(signatures, await self._aseats())
        envelopes = self._builder.build(signatures, inside.get())
        connection = self._connection(signatures)
        if connection is None and self._held(signatures, envelopes):
            published = [Published(envelope.id) for envelope in envelopes]
        elif connection is not None:
            within = await self._backend_of_urls.unwrap(connection)
            published = await self._backend().broker.publish(envelopes, within)
        else:
            published = await self._apublish(envelopes)
        return self._handles(signatures, published)

    def _seats(self) -> list[Seat]:
        """The workers' names and indexes. Raises PublishTimeout."""
        deadline = self._settings.deadline
        try:
            if level := reentry.here.level:
                return self._inside(level).ask(lambda backend: backend.routes.seats(), deadline)
            return self.bridge.run(self.routes.seats(), deadline)
        except TimeoutError as error:
            raise self._too_late(error) from None

    async def _aseats(self) -> list[Seat]:
        try:
            with anyio.fail_after(self._settings.deadline):
                return await self.hand_over(self.routes.seats())
        except TimeoutError as error:
            raise self._too_late(error) from None

    def _too_late(self, error: TimeoutError) -> BaseException:
        if isinstance(error, UmbelError):
            return error
        late = f"not published within {self._settings.deadline:g} s"
        return PublishTimeout(f"{late}: the store does not say which worker has the name")

    def _connection(self, signatures: Sequence[Signature[Any]]) -> Any:
        """In whose transaction they are published: the caller's, or that of the step here."""
        given, place, run = _one_connection(signatures), inside.get(), running.get()
        if given is not None or place is None or run is None or run.task is None:
            return given
        return place.connection if run.task.goes_out_by(self) else None

    def _held(self, signatures: Sequence[Signature[Any]], envelopes: list[Envelope]) -> bool:
        """Whether they are published with the success of the task that runs here, and not now."""
        run = running.get()
        if run is None or run.task is None or inside.get() is not None:
            return False
        declared = run.task.declared
        if declared.publishing == "held" and run.task.goes_out_by(self):
            run.hold(envelopes, self._clock.monotonic())
            return True
        if declared.interruptible and declared.publishing is None:
            self._warn(run.task.name, signatures)
        return False

    def _warn(self, task: str, signatures: Sequence[Signature[Any]]) -> None:
        """Once for each task: its next run may publish the same again. With an id it does not."""
        repeatable = [one for one in signatures if one.options.id is None]
        if repeatable and task not in self._warned:
            self._warned.add(task)
            self._tell(events.PublishedUnheld(task=task, calls=repeatable[0].task.name))

    def _publish(self, envelopes: list[Envelope]) -> list[Published]:
        here = reentry.here
        if level := here.level:
            return self._inside(level).publish(envelopes)
        here.level = 1
        try:
            return self._publisher().publish(envelopes)
        finally:
            here.level = 0

    async def _apublish(self, envelopes: list[Envelope]) -> list[Published]:
        publisher, answered, wake = self._publisher(), anyio.Event(), waker()
        parcel = publisher.publish_soon(envelopes, lambda: wake(answered.set))
        try:
            with anyio.move_on_after(parcel.until - self._clock.monotonic()):
                await answered.wait()
            publisher.run_out(parcel)  # unless it is answered
        except BaseException:
            publisher.give_up(parcel)
            raise
        return parcel.result()

    def _handles(
        self, signatures: Sequence[Signature[Any]], published: Sequence[Published]
    ) -> list[Handle[Any]]:
        return [
            Handle(one.id, self, _returns(signature))
            for signature, one in zip(signatures, published, strict=True)
        ]

    def send_envelope(self, envelope: Envelope) -> Handle[Any]:
        """Publish a message that was built elsewhere."""
        return Handle(self._publish([envelope])[0].id, self)

    async def asend_envelopes(self, envelopes: list[Envelope]) -> list[Published]:
        """Publish messages that were built elsewhere."""
        return await self._apublish(envelopes)

    def kept(self) -> Held | None:
        """What is kept where other processes see it."""
        found = backlog(self._settings, self._clock)
        if found is None or not found.durable:
            return None
        try:
            return found.held()
        finally:
            found.close()

    def flush(self, timeout: float) -> int:
        """Publish what is kept, for so long; how many messages are left."""
        forwarder, until = self._open().forwarder, self._clock.monotonic() + timeout
        with reentry.entered():
            while forwarder is not None and (left := forwarder.held().messages):
                if self._clock.monotonic() >= until:
                    return left
                time.sleep(0.02)
        return 0

    # --- Jobs --------------------------------------------------------------------------------

    async def record(self, job: str) -> Record:
        """The job's record. Raises UnknownJob."""
        return await self._backend().records.find(job)

    async def finished(self, job: str, timeout: float | None) -> Record:
        """The record once it is final; for the bridge's loop. Raises UnknownJob, ResultTimeout.

        A message in this process's backlog is unknown to the store: it has to be published first.
        """
        until, kept, looks = self._until(timeout), self._open().forwarder, 0
        # Looking there first misses nothing: a message is published before it is removed.
        while kept is not None and kept.holds and await asyncio.to_thread(kept.keeps, job):
            left, looks = self._left(until), looks + 1
            if left is not None and left <= 0:
                raise ResultTimeout(f"job {job} has not finished within {timeout} s")
            pause = _LOOKS.delay(looks)
            await asyncio.sleep(pause if left is None else min(pause, left))
        return await self._backend().records.finished(job, self._left(until))

    def ended(self, job: str, timeout: float | None) -> Record:
        """``finished`` for a caller that blocks. What is final by now is found in its own thread.

        Of many jobs that one waits for, most have ended while one waited for the first.

        Raises:
            UnknownJob: no such job. ResultTimeout: not final in time.
        """
        until, look = self._until(timeout), self._open().look
        if look is not None and not reentry.here.level:
            with reentry.entered(), suppress(Unavailable):  # the wait below tries again
                if (record := look(job, _LOOK)) is not None:
                    return record
        left = self._left(until)
        with _keeping_to(timeout, job):
            return self.bridge.run(self.finished(job, left), _with_grace(left))

    async def aended(self, job: str, timeout: float | None) -> Record:
        """``ended`` for async code."""
        with _keeping_to(timeout, job):
            return await self.bridge.arun(self.finished(job, timeout), _with_grace(timeout))

    def _until(self, timeout: float | None) -> float | None:
        return None if timeout is None else self._clock.monotonic() + timeout

    def _left(self, until: float | None) -> float | None:
        return None if until is None else max(until - self._clock.monotonic(), 0.0)

    async def cancel(self, job: str, reason: str) -> bool:
        """Ask for it not to run or to stop. False when it ended otherwise. Raises UnknownJob."""
        found = await self._backend().control.cancel([job], reason)
        if job not in found:
            raise UnknownJob(f"no job {job}: never published here, rolled back, or pruned")
        return found[job] in ("running", "cancelled")

    def monotonic(self) -> float:
        """Seconds since some fixed point, by the application's clock."""
        return self._clock.monotonic()

    @property
    def routes(self) -> Routes:
        """Which worker has which key; for the bridge's loop."""
        return self._backend().routes

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Block a sync caller until the work is done on the bridge. Raises Unavailable."""
        with self._answering():
            return self.bridge.run(work, self._settings.deadline)

    async def hand_over(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work on the bridge from any other loop. Raises Unavailable."""
        with self._answering():
            return await self.bridge.arun(work, self._settings.deadline)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Work that is not done within the deadline is an Unavailable."""
        try:
            yield
        except TimeoutError as error:
            if isinstance(error, UmbelError):
                raise
            raise Unavailable(
                f"the store has not answered within {self._settings.deadline:g} s (deadline); check"
                " that its server runs"
            ) from None

    # --- adapters ----------------------------------------------------------------------------

    def open(self) -> None:
        """Open the adapters now, not with the first call. What a backlog holds is published."""
        self._open()

    def close(self) -> None:
        """Close the adapters and the bridge. Using the desk again opens new ones."""
        opened, self._opened = self._opened, None
        generation = self.bridge.generation
        with reentry.entered():
            if opened is not None and opened.generation == generation:
                if opened.forwarder is not None:
                    opened.forwarder.close(self._settings.deadline)
                opened.publisher.close()
                self.bridge.run(opened.backend.close(), timeout=5)
            self.bridge.close()
            for (made, _), parts in list(self._reentrant.items()):
                if made == generation:
                    parts.close()
        self._backlogs.pop(generation, None)

    def _backend(self) -> Roles:
        return self._open().backend

    def _publisher(self) -> Publisher:
        return self._open().publisher

    def _open(self) -> Opened:
        generation = self.bridge.generation
        opened = self._opened
        if opened is not None and opened.generation == generation:
            return opened
        with reentry.entered(), self._opening:
            if self._opened is None or self._opened.generation != generation:
                made = self._make(generation)
                if self._opened is None or self._opened.generation != generation:
                    self._forgotten.append(self._opened)  # a parent's is not to be touched here
                    self._opened = made
                elif made.forwarder is not None:
                    # A call inside this one was faster: in a signal handler or a finalizer.
                    made.forwarder.close(0.0)
            return self._opened

    def _make(self, generation: int) -> Opened:
        backend = self._backend_of_urls.open(inline=True)
        send, deadline = self._send(backend.broker, self.bridge), self._settings.deadline
        forwarder = self._forwarder(send)
        publisher = Publisher(
            forwarder.send if forwarder else send,
            self._clock,
            deadline=deadline,
            keeps=forwarder is not None,
        )
        records = backend.records
        look = records.look if isinstance(records, PromptRecords) else None
        return Opened(generation, backend, publisher, forwarder, look)

    def _backlog(self) -> Backlog | None:
        generation = self.bridge.generation
        if generation not in self._backlogs:
            self._backlogs.setdefault(generation, backlog(self._settings, self._clock))
        return self._backlogs.get(generation)

    def _forwarder(self, send: Send) -> Forwarder | None:
        kept, deadline = self._backlog(), self._settings.deadline
        if kept is None:
            return None
        forwarder = Forwarder(send, kept, self._clock, deadline=deadline, tell=self._tell)
        close_at_exit(forwarder, deadline)
        return forwarder

    # --- calls inside a call -----------------------------------------------------------------

    def _inside(self, level: int) -> Reentrant:
        """What publishes for calls that are made inside others. Waits for no lock."""
        key = self.bridge.generation, level
        if (found := self._reentrant.get(key)) is not None:
            return found
        parts = Reentrant(
            level,
            lambda: self._backend_of_urls.open(inline=True),
            self._send,
            self._reentrant_forwarder,
            self._clock,
            deadline=self._settings.deadline,
            keeps=self._settings.backlog != "none",
        )
        return self._reentrant.setdefault(key, parts)

    def _reentrant_forwarder(self, send: Send) -> ReentrantForwarder | None:
        kept = self._backlog()
        if kept is None:
            return None
        return ReentrantForwarder(send, kept.beside(), self._present_forwarder, self._publish_kept)

    def _present_forwarder(self) -> Forwarder | None:
        opened = self._opened
        if opened is None or opened.generation != self.bridge.generation:
            return None
        return opened.forwarder

    def _publish_kept(self, why: str) -> None:
        """Have the forwarder see to the backlog, in a thread that may wait for its locks."""

        def work() -> None:
            if (forwarder := self._open().forwarder) is not None:
                forwarder.publish_kept(why)

        reentry.thread(work, name="umbel-kept", level=0).start()

    def _tell(self, event: events.Event) -> None:
        """Tell whoever listens; in a program that has no listener of ours, its log."""
        if self._telemetry.hears(type(event)):
            self._telemetry.emit(event)
        else:
            fields = " ".join(f"{k}={v!r}" for k, v in msgspec.structs.asdict(event).items())
            _log.log(logging.getLevelName(event.level.upper()), "%s %s", event.text, fields)

    def _send(self, broker: Broker, bridge: Bridge) -> Send:
        """How to publish for a caller that blocks: in its thread, or on the bridge."""
        if broker.capabilities.direct:
            return cast(BlockingBroker, broker).publish_now

        def publish(envelopes: Sequence[Envelope], timeout: float) -> Publishing:
            if isinstance(broker, TimedBroker):
                return broker.publish_timed(envelopes, timeout)
            return broker.publish(envelopes)

        def send(envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
            try:
                return bridge.run(publish(envelopes, timeout), timeout)
            except TimeoutError as error:
                if isinstance(error, UmbelError):
                    raise
                raise Unavailable("the broker did not answer in time") from None

        return send

    def _forget_lock(self) -> None:
        self._opening = threading.RLock()  # a thread of the parent's may hold the other for ever


@contextmanager
def _keeping_to(timeout: float | None, job: str) -> Iterator[None]:
    """A wait that took too long is a ResultTimeout that names the caller's own timeout."""
    try:
        yield
    except ResultTimeout:
        raise ResultTimeout(f"job {job} has not finished within {timeout} s") from None
    except TimeoutError as error:
        if isinstance(error, UmbelError):
            raise
        raise ResultTimeout(
            f"job {job} has not finished within {timeout} s: its store has not answered"
        ) from None


def _with_grace(timeout: float | None) -> float | None:
    return None if timeout is None else timeout + _GRACE


def _returns(signature: Signature[Any]) -> Any:
    """What its handle gives: of a broadcast, what came of it on each worker."""
    is_part = signature.options.worker is not None
    if signature.task.declared.broadcast and not is_part:
        return dict[str, Told]
    return signature.task.parameters.returns


def _names_workers(signatures: Sequence[Signature[Any]]) -> bool:
    return any(isinstance(signature.options.worker, str) for signature in signatures)


def _one_connection(signatures: Sequence[Signature[Any]]) -> Any:
    """The connection all calls of a batch share, or None."""
    first = signatures[0].options.connection
    if any(signature.options.connection is not first for signature in signatures):
        raise ConfigurationError("connection: calls published together must share one connection")
    return first
