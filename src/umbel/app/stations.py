"""Processes that work for others over links: the router, the publisher daemon, a worker's inbox."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from umbel.backends import (
    Broker,
    Control,
    Deployments,
    Gates,
    Published,
    Records,
    Registry,
    Roles,
    Routes,
    Steps,
)
from umbel.backends.amqp.address import Home
from umbel.backends.amqp.message_bytes import Post
from umbel.clock import Clock
from umbel.errors import ResultTimeout, Unavailable, UnknownJob
from umbel.links import LinkServer, Served, Take
from umbel.messages import Envelope, Record
from umbel.messages.documents import Asked, addressed, answer_from
from umbel.messages.wire import MEDIA_TYPE, attributes, read_message
from umbel.router import Dispatcher, Receiver, SharedRouter
from umbel.services import look_after
from umbel.telemetry import Telemetry, events
from umbel.worker.intake import Intake

INTAKE = "intake/"
"""Before the queues, in the address of a worker's intake."""

_MAX_INTAKES = 16
"""Sets of queues from which one peer may fetch."""
_READ_AT_ONCE = 8
"""Results that are read at once for one peer."""
_UPKEEP = 3.0
_AGAIN = 1.0
_FOR_PUBLISHERS: dict[str, frozenset[str]] = {
    "broker": frozenset({"publish", "check"}),
    "records": frozenset({"find", "finished"}),
    "control": frozenset({"cancel"}),
    "registry": frozenset(),
    "gates": frozenset(),
    "steps": frozenset({"steps"}),
    "deployments": frozenset(),
    "routes": frozenset({"find", "release", "seats"}),
}
"""What whoever publishes may do, and no more."""

Publish = Callable[[Sequence[Envelope]], Awaitable[list[Published]]]


class Counter:
    """The broker as others see it who publish: what they hand in goes the publisher's way."""

    def __init__(self, broker: Broker, publish: Publish) -> None:
        self._broker = broker
        self._publish = publish

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def publish(self, envelopes: Sequence[Envelope], within: None = None) -> list[Published]:
        """Durable in the broker, or in this process's backlog."""
        return await self._publish(envelopes)


class Results:
    """The records as one peer sees them: results that exist already are read a few at a time.

    A peer may wait for many results at once. If all of them exist, reading them all at once would
    fill the memory before the first of them is sent.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._reading = asyncio.Semaphore(_READ_AT_ONCE)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)

    async def finished(self, job: str, timeout: float | None) -> Record:
        """The record once it is final. Raises UnknownJob, ResultTimeout."""
        async with self._reading:
            try:
                return await self._records.finished(job, 0)
            except ResultTimeout:
                if timeout == 0:
                    raise
        return await self._records.finished(job, timeout)


class Station:
    """Serves links until it is stopped."""

    def __init__(
        self,
        home: Home,
        open_backend: Callable[[], Roles],
        publish: Publish,
        *,
        open_upkeep: Callable[[float], list[Callable[[], Awaitable[object]]]] | None,
        operate: bool,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._home = home
        self._open_backend = open_backend
        self._publish = publish
        self._open_upkeep = open_upkeep
        self._operate = operate
        self._clock = clock
        self._telemetry = telemetry
        self._stop = asyncio.Event()
        self.address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Where it listens, once it does."""

    def stop(self) -> None:
        """Say goodbye to all and end. What they were doing, they do again elsewhere or later."""
        self._stop.set()

    async def run(self) -> None:
        """Serve until stopped. Raises what starting raises."""
        backend = self._open_backend()
        dispatcher = Dispatcher(backend.broker, self._clock)
        routes = self._open_upkeep is not None
        server = LinkServer(
            self._home, lambda: self._nodes(backend, dispatcher, routes=routes), self._telemetry
        )
        duties = self._open_upkeep(_UPKEEP) if self._open_upkeep else []
        upkeep = asyncio.create_task(look_after(duties, _UPKEEP, self._telemetry))
        try:
            where = await server.start()
            self.address.set_result(where)
            roles = "workers and publishers" if routes else "publishers"
            self._telemetry.emit(events.LinksServed(address=where, roles=roles))
            await self._stop.wait()
            await server.close()
            self._telemetry.emit(events.LinksClosed(address=where))
        finally:
            upkeep.cancel()
            await asyncio.wait([upkeep])
            await server.close()
            await dispatcher.close()
            await backend.close()

    def _nodes(self, backend: Roles, dispatcher: Dispatcher, *, routes: bool) -> StationNodes:
        def route(queues: Sequence[str]) -> SharedRouter:
            return SharedRouter(
                dispatcher,
                backend,
                queues=queues,
                receiver=Receiver(),
                clock=self._clock,
                telemetry=self._telemetry,
            )

        return StationNodes(
            backend, self._publish, route if routes else None, operate=self._operate
        )


class StationNodes:
    """What one peer finds here."""

    def __init__(
        self,
        backend: Roles,
        publish: Publish,
        route: Callable[[Sequence[str]], SharedRouter] | None,
        *,
        operate: bool,
    ) -> None:
        self._backend = backend
        self._results = Results(backend.records)
        self._publish = publish
        self._route = route
        self._operate = operate
        self._routers: dict[str, SharedRouter] = {}

    def find(self, address: str) -> Served | Take | None:
        if address == "commands":
            return self._take
        if address.startswith(INTAKE):
            return self._intake(address.removeprefix(INTAKE))
        backend, allowed = self._backend, _FOR_PUBLISHERS.get(address)
        if allowed is None:
            return None
        ports: dict[str, tuple[type, Any]] = {
            "broker": (Broker, Counter(backend.broker, self._publish)),
            "records": (Records, self._results),
            "control": (Control, backend.control),
            "gates": (Gates, backend.gates),
            "steps": (Steps, backend.steps),
            "deployments": (Deployments, backend.deployments),
            "routes": (Routes, backend.routes),
            "registry": (Registry, backend.registry),
        }
        return Served(*ports[address], None if self._operate else allowed)

    async def gone(self) -> None:
        for router in self._routers.values():
            await router.close()

    def _intake(self, queues: str) -> Served | None:
        if self._route is None:
            return None
        router = self._routers.get(queues)
        if router is None:
            if len(self._routers) >= _MAX_INTAKES:
                return None
            router = self._route([unquote(queue) for queue in queues.split(",")])
            self._routers[queues] = router
        return Served(Intake, router)

    async def _take(self, post: Post) -> Awaitable[Post] | None:
        """A command from somebody who does not know us: a CloudEvent, in either mode."""
        content_type = post.content_type or ("" if post.attributes else MEDIA_TYPE)
        envelope = read_message(post.attributes, content_type, post.body)
        (published,) = await self._publish([envelope])
        if not post.reply_to:
            return None
        return self._tell(published.id, post.correlation or published.id)

    async def _end_of(self, job: str) -> Record:
        """The record once it is final, however long the store is away or the job in a backlog."""
        while True:
            with suppress(Unavailable, UnknownJob):
                return await self._results.finished(job, None)
            await asyncio.sleep(_AGAIN)

    async def _tell(self, job: str, correlation: str) -> Post:
        asked = Asked("", correlation)
        document = addressed(answer_from(await self._end_of(job)), asked)
        return Post(
            body=document.body.data,
            content_type=document.body.content_type,
            subject=document.subject,
            correlation=correlation,
            attributes=attributes(document),
        )
