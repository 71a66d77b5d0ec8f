"""The part of a process that serves links.

It runs in the router process, in the publisher daemon, and in a worker that accepts direct calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from umbel.backends import (
    CANCELLATIONS,
    PAUSES,
    Broker,
    Control,
    Coordination,
    Gates,
    Joins,
    Page,
    Published,
    Records,
    Registry,
    Roles,
    Routes,
    Steps,
)
from umbel.backends.amqp.address import AmqpAddress
from umbel.backends.amqp.message_codec import AmqpMessage
from umbel.backends.coordination import MAX_ENTRIES
from umbel.clock import Clock
from umbel.errors import ConfigurationError, ResultTimeout, Unavailable, UnknownJob
from umbel.links import LinkServer, MessageHandler, ServedPort
from umbel.messages import Envelope, Record
from umbel.messages.documents import ReplyRequest, add_correlation, document_from_record
from umbel.messages.wire import MEDIA_TYPE, attributes, read_message
from umbel.router import Dispatcher, DuplicateFilter, SharedRouter
from umbel.services import Service, keep_running, run_periodically
from umbel.telemetry import Telemetry, events
from umbel.worker.intake import Intake

INTAKE_PREFIX = "intake/"
"""Precedes the queues in the address of a worker's intake."""

_MAX_INTAKES = 16
"""Sets of queues from which one peer may fetch."""
_MAX_CONCURRENT_READS = 8
"""Results that are read at once for one peer."""
_UPKEEP_INTERVAL_SECONDS = 3.0
_RETRY_DELAY_SECONDS = 1.0
_PUBLISHER_METHODS: dict[str, frozenset[str]] = {
    "broker": frozenset({"publish", "check"}),
    "records": frozenset({"find", "wait_finished"}),
    "control": frozenset({"cancel"}),
    "registry": frozenset(),
    "gates": frozenset(),
    "steps": frozenset({"steps"}),
    "joins": frozenset({"add", "seal", "results", "members"}),
    "coordination": frozenset(),
    "routes": frozenset({"find", "release", "worker_indexes"}),
}
"""The methods that a publisher may call."""
_WORKER_METHODS: dict[str, frozenset[str]] = {
    "records": frozenset({"record_progress"}),
    "control": frozenset({"cancellations"}),
    "coordination": frozenset({"read", "changed"}),
    "registry": frozenset({"heartbeat", "record_inbox_receipts"}),
    "gates": frozenset({"claim_due_checks"}),
    "steps": frozenset({"steps", "keep"}),
}
"""The methods that a worker may call besides those of its intake."""

_WORKER_SECTIONS = (PAUSES, CANCELLATIONS)
"""The sections of coordination that a worker may read."""

Publish = Callable[[Sequence[Envelope]], Awaitable[list[Published]]]


class PublishingBroker:
    """A broker for peers: it publishes through this process's publisher, with its backlog."""

    def __init__(self, broker: Broker, publish: Publish) -> None:
        self._broker = broker
        self._publish = publish

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def publish(self, envelopes: Sequence[Envelope], within: None = None) -> list[Published]:
        """Publish; the messages are then durable in the broker or in this process's backlog."""
        return await self._publish(envelopes)


class PeerRecords:
    """The records for one peer: results that exist already are read a few at a time.

    A peer may wait for many results at once. If all of them exist, reading them all at once would
    fill the memory before the first of them is sent.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._reading = asyncio.Semaphore(_MAX_CONCURRENT_READS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)

    async def wait_finished(self, job: str, timeout: float | None) -> Record:
        """Return the record once it is final. Raises UnknownJob, ResultTimeout."""
        async with self._reading:
            try:
                return await self._records.wait_finished(job, 0)
            except ResultTimeout:
                if timeout == 0:
                    raise
        return await self._records.wait_finished(job, timeout)


class PeerCoordination:
    """The entries that a peer without the rights of an operator may see: those of its worker."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    async def read(self, prefix: str, after: str = "", limit: int = MAX_ENTRIES) -> Page:
        """Return entries of a prefix that the peer may see. Raises ConfigurationError."""
        _check_prefix(prefix)
        return await self._coordination.read(prefix, after, limit)

    async def changed(self, since: Mapping[str, int], wait: float) -> dict[str, int]:
        """Wait for a change of prefixes that the peer may see. Raises ConfigurationError."""
        for prefix in since:
            _check_prefix(prefix)
        return await self._coordination.changed(since, wait)


def _check_prefix(prefix: str) -> None:
    if not prefix.startswith(_WORKER_SECTIONS):
        raise ConfigurationError(
            f"prefix {prefix!r}: a worker may read only {', '.join(_WORKER_SECTIONS)}; start the"
            " router with --operate to allow more"
        )


class LinkService:
    """Serves links until it is stopped."""

    def __init__(
        self,
        listen_address: AmqpAddress,
        open_backend: Callable[[], Roles],
        publish: Publish,
        *,
        open_upkeep: Callable[[float], list[Callable[[], Awaitable[object]]]] | None,
        open_services: Callable[[Roles], Sequence[Service]] | None,
        operate: bool,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._listen_address = listen_address
        self._open_backend = open_backend
        self._publish = publish
        self._open_upkeep = open_upkeep
        self._open_services = open_services
        self._operate = operate
        self._clock = clock
        self._telemetry = telemetry
        self._stop = asyncio.Event()
        self.address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """The address, with its port, once the service listens."""

    def stop(self) -> None:
        """Close all connections and end ``run``. Peers repeat their calls elsewhere or later."""
        self._stop.set()

    async def run(self) -> None:
        """Serve until stopped. Raises what starting raises."""
        backend = self._open_backend()
        dispatcher = Dispatcher(backend.broker, self._clock)
        serves_workers = self._open_upkeep is not None
        server = LinkServer(
            self._listen_address,
            lambda: self._make_ports(backend, dispatcher, serves_workers=serves_workers),
            self._telemetry,
        )
        duties = self._open_upkeep(_UPKEEP_INTERVAL_SECONDS) if self._open_upkeep else []
        running = [run_periodically(duties, _UPKEEP_INTERVAL_SECONDS, self._telemetry)]
        services = self._open_services(backend) if self._open_services is not None else ()
        running += [keep_running(one, self._telemetry) for one in services]
        tasks = [*map(asyncio.create_task, running)]
        try:
            address = await server.start()
            self.address.set_result(address)
            roles = "workers and publishers" if serves_workers else "publishers"
            self._telemetry.emit(events.LinksServed(address=address, roles=roles))
            await self._stop.wait()
            await server.close()
            self._telemetry.emit(events.LinksClosed(address=address))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await server.close()
            await dispatcher.close()
            await backend.close()

    def _make_ports(
        self, backend: Roles, dispatcher: Dispatcher, *, serves_workers: bool
    ) -> PeerPorts:
        def make_router(queues: Sequence[str]) -> SharedRouter:
            return SharedRouter(
                dispatcher,
                backend,
                queues=queues,
                duplicates=DuplicateFilter(),
                clock=self._clock,
                telemetry=self._telemetry,
            )

        return PeerPorts(
            backend, self._publish, make_router if serves_workers else None, operate=self._operate
        )


class PeerPorts:
    """The nodes of one peer. ``make_router`` is None if this process serves no workers."""

    def __init__(
        self,
        backend: Roles,
        publish: Publish,
        make_router: Callable[[Sequence[str]], SharedRouter] | None,
        *,
        operate: bool,
    ) -> None:
        self._backend = backend
        self._records = PeerRecords(backend.records)
        self._coordination = (
            backend.coordination if operate else PeerCoordination(backend.coordination)
        )
        self._publish = publish
        self._make_router = make_router
        self._operate = operate
        self._routers: dict[str, SharedRouter] = {}

    def find(self, address: str) -> ServedPort | MessageHandler | None:
        if address == "commands":
            return self._publish_command
        if address.startswith(INTAKE_PREFIX):
            return self._find_intake(address.removeprefix(INTAKE_PREFIX))
        backend, allowed = self._backend, _PUBLISHER_METHODS.get(address)
        if allowed is None:
            return None
        if self._make_router is not None:
            allowed |= _WORKER_METHODS.get(address, frozenset())
        ports: dict[str, tuple[type, Any]] = {
            "broker": (Broker, PublishingBroker(backend.broker, self._publish)),
            "records": (Records, self._records),
            "control": (Control, backend.control),
            "gates": (Gates, backend.gates),
            "steps": (Steps, backend.steps),
            "joins": (Joins, backend.joins),
            "coordination": (Coordination, self._coordination),
            "routes": (Routes, backend.routes),
            "registry": (Registry, backend.registry),
        }
        return ServedPort(*ports[address], None if self._operate else allowed)

    async def close(self) -> None:
        for router in self._routers.values():
            await router.close()

    def _find_intake(self, queues: str) -> ServedPort | None:
        if self._make_router is None:
            return None
        router = self._routers.get(queues)
        if router is None:
            if len(self._routers) >= _MAX_INTAKES:
                return None
            router = self._make_router([unquote(queue) for queue in queues.split(",")])
            self._routers[queues] = router
        return ServedPort(Intake, router)

    async def _publish_command(self, message: AmqpMessage) -> Awaitable[AmqpMessage] | None:
        """Publish a command of any AMQP 1.0 client: a CloudEvent, in either mode."""
        content_type = message.content_type or ("" if message.attributes else MEDIA_TYPE)
        envelope = read_message(message.attributes, content_type, message.body)
        (published,) = await self._publish([envelope])
        if not message.reply_to:
            return None
        return self._make_reply(published.id, message.correlation or published.id)

    async def _wait_finished(self, job: str) -> Record:
        """Return the record once it is final, even if the store is away or the job in a backlog."""
        while True:
            with suppress(Unavailable, UnknownJob):
                return await self._records.wait_finished(job, None)
            await asyncio.sleep(_RETRY_DELAY_SECONDS)

    async def _make_reply(self, job: str, correlation: str) -> AmqpMessage:
        asked = ReplyRequest("", correlation)
        document = add_correlation(document_from_record(await self._wait_finished(job)), asked)
        return AmqpMessage(
            body=document.body.data,
            content_type=document.body.content_type,
            subject=document.subject,
            correlation=correlation,
            attributes=attributes(document),
        )
