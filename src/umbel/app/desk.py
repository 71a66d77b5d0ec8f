"""The application's counter for callers: publishes for tasks, answers for handles.

Messages are published in the caller's own thread; what is waited for runs on the bridge's loop.
The adapters are the desk's own. After a fork the child opens new ones; the parent's are left
alone.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar, cast

import anyio
import msgspec

from umbel.app.inbox import addressed
from umbel.app.keeping import backlog
from umbel.app.sites import Site
from umbel.brokers import Broker, DirectBroker, Published
from umbel.clock import Clock
from umbel.configuration import Settings
from umbel.drivers.connections import unwrap
from umbel.errors import ConfigurationError, UmbelError, Unavailable, UnknownJob
from umbel.keys import KeyFile
from umbel.messages import BodyCodec, Envelope, Record
from umbel.publisher import Bridge, Builder, Forwarder, Publisher, Send, Tell, waker
from umbel.publisher.backlogs import Held
from umbel.router import Backend
from umbel.stores import PromptRecords, Routes
from umbel.tasks import Handle, Signature, inside, running
from umbel.tasks.handle import Told
from umbel.telemetry import Telemetry, events

_log = logging.getLogger("umbel")
T = TypeVar("T")
_LOOK = 0.1
"""Seconds that a look for a record may take before it is waited for as ever."""


class Opened(NamedTuple):
    """What a desk has open, since a fork or from the start."""

    generation: int
    backend: Backend
    publisher: Publisher
    forwarder: Forwarder | None
    look: Callable[[str, float], Record | None] | None
    """How a caller that blocks finds a job that is final, if it can do that in its own thread."""


class Desk:
    """Implements the Outlet of tasks and the Jobs of handles."""

    def __init__(
        self,
        site: Site,
        settings: Settings,
        codec: BodyCodec,
        clock: Clock,
        telemetry: Telemetry | None = None,
        keys: KeyFile | None = None,
    ) -> None:
        self.codec = codec
        self.bridge = Bridge()
        self._site = site
        self._settings = settings
        self._clock = clock
        self._telemetry = telemetry or Telemetry()
        self._builder = Builder(codec, settings.namespace, clock, keys)
        self._opened: Opened | None = None
        self._forgotten: list[Any] = []
        self._warned: set[str] = set()
        self._opening = threading.Lock()
        os.register_at_fork(after_in_child=self._forget_lock)

    # --- Outlet ------------------------------------------------------------------------------

    def send(self, signatures: Sequence[Signature[Any]]) -> list[Handle[Any]]:
        """Publish from sync code: inside the caller's transaction, or in one of our own."""
        if not signatures:
            return []
        if _names_workers(signatures):
            signatures = addressed(signatures, self.wait_for(self.routes.seats()))
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
            signatures = addressed(signatures, await self.hand_over(self.routes.seats()))
        envelopes = self._builder.build(signatures, inside.get())
        connection = self._connection(signatures)
        if connection is None and self._held(signatures, envelopes):
            published = [Published(envelope.id) for envelope in envelopes]
        elif connection is not None:
            within = await self._site.unwrap(connection)
            published = await self._backend().broker.publish(envelopes, within)
        else:
            published = await self._apublish(envelopes)
        return self._handles(signatures, published)

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
            if run.held is None:
                run.held = []
            run.held += envelopes
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
        return self._publisher().publish(envelopes)

    async def _apublish(self, envelopes: list[Envelope]) -> list[Published]:
        publisher, answered, wake = self._publisher(), anyio.Event(), waker()
        parcel = publisher.publish_soon(envelopes, lambda: wake(answered.set))
        try:
            await answered.wait()
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
        """The record once it is final. Raises UnknownJob, ResultTimeout."""
        return await self._backend().records.finished(job, timeout)

    def ended(self, job: str, timeout: float | None) -> Record:
        """``finished`` for a caller that blocks. What is final by now is found in its own thread.

        Of many jobs that one waits for, most have ended while one waited for the first.

        Raises:
            UnknownJob: no such job. ResultTimeout: not final in time.
        """
        look = self._open().look
        if look is not None:
            with suppress(Unavailable):  # whoever waits keeps on trying
                if (record := look(job, _LOOK)) is not None:
                    return record
        return self.wait_for(self.finished(job, timeout))

    async def cancel(self, job: str, reason: str) -> bool:
        """Ask for it not to run or to stop. False when it ended otherwise. Raises UnknownJob."""
        found = await self._backend().control.cancel([job], reason)
        if job not in found:
            raise UnknownJob(f"no job {job}: never published here, rolled back, or pruned")
        return found[job] in ("running", "cancelled")

    def now(self) -> float:
        """The time by the application's clock."""
        return self._clock.now()

    @property
    def routes(self) -> Routes:
        """Which worker has which key; for the bridge's loop."""
        return self._backend().routes

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Block a sync caller until the work is done on the bridge."""
        return self.bridge.run(work)

    async def hand_over(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work on the bridge from any other loop."""
        return await self.bridge.arun(work)

    # --- adapters ----------------------------------------------------------------------------

    def close(self) -> None:
        """Close the adapters and the bridge. Using the desk again opens new ones."""
        opened, self._opened = self._opened, None
        if opened is not None and opened.generation == self.bridge.generation:
            if opened.forwarder is not None:
                _part(opened.forwarder, self._settings.deadline, self._tell)
            opened.publisher.close()
            self.bridge.run(opened.backend.close(), timeout=5)
        self.bridge.close()

    def _backend(self) -> Backend:
        return self._open().backend

    def _publisher(self) -> Publisher:
        return self._open().publisher

    def _open(self) -> Opened:
        generation = self.bridge.generation
        opened = self._opened
        if opened is not None and opened.generation == generation:
            return opened
        with self._opening:
            if self._opened is None or self._opened.generation != generation:
                self._forgotten.append(self._opened)  # a parent's is not to be touched here
                backend = self._site.open(inline=True)
                send, deadline = self._send(backend.broker), self._settings.deadline
                forwarder = self._forwarder(send)
                publisher = Publisher(
                    forwarder.send if forwarder else send, self._clock, deadline=deadline
                )
                records = backend.records
                look = records.look if isinstance(records, PromptRecords) else None
                self._opened = Opened(generation, backend, publisher, forwarder, look)
            return self._opened

    def _forwarder(self, send: Send) -> Forwarder | None:
        kept, deadline = backlog(self._settings, self._clock), self._settings.deadline
        if kept is None:
            return None
        forwarder = Forwarder(send, kept, self._clock, deadline=deadline, tell=self._tell)
        atexit.register(_part_at_exit, weakref.ref(forwarder), deadline, self._tell)
        return forwarder

    def _tell(self, event: events.Event) -> None:
        """Tell whoever listens; in a program that has no listener of ours, its log."""
        if self._telemetry.hears(type(event)):
            self._telemetry.emit(event)
        else:
            fields = " ".join(f"{k}={v!r}" for k, v in msgspec.structs.asdict(event).items())
            _log.log(logging.getLevelName(event.level.upper()), "%s %s", event.text, fields)

    def _send(self, broker: Broker) -> Send:
        """How to publish for a caller that blocks: in its thread, or on the bridge."""
        if broker.capabilities.direct:
            return cast(DirectBroker, broker).publish_now

        def send(envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
            try:
                return self.bridge.run(broker.publish(envelopes), timeout)
            except TimeoutError as error:
                if isinstance(error, UmbelError):
                    raise
                raise Unavailable("the broker did not answer in time") from None

        return send

    def _forget_lock(self) -> None:
        self._opening = threading.Lock()  # a thread of the parent's may hold the other for ever


def _part_at_exit(kept: weakref.ref[Forwarder], deadline: float, tell: Tell) -> None:
    forwarder = kept()
    if forwarder is not None:
        _part(forwarder, deadline, tell)


def _part(forwarder: Forwarder, deadline: float, tell: Tell) -> None:
    left = forwarder.close(deadline)
    if left:
        tell(events.BacklogLost(messages=left))


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
