"""``Umbel``: the composition root. Builds the parts and hands each what it uses."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from msgspec.structs import replace

from umbel.app.backends import open_backend
from umbel.app.broadcasts import announcement
from umbel.app.client import Client
from umbel.app.link_backend import LinkBackend
from umbel.app.routes import AppRoutes
from umbel.backends import Published
from umbel.backends.backlog import Held
from umbel.clock import Clock, SystemClock
from umbel.configuration import Settings
from umbel.errors import BadMessage, ConfigurationError
from umbel.keys import SEAL, KeyFile
from umbel.messages import BodyCodec, Envelope, MessageType
from umbel.messages.wire import read
from umbel.services import Service, UserService
from umbel.tasks import Handle, Registry, Signature, Task, TaskOptions
from umbel.tasks.gates import Check, Gating, Limit, Pool, Rate, as_limits, as_rates
from umbel.tasks.inbox import InboxTasks
from umbel.tasks.policies import storable_name
from umbel.tasks.task import CPUTask, Declaration, Decorator, IOTask, declare
from umbel.telemetry import Telemetry, events

if TYPE_CHECKING:
    # A process that only publishes never loads these.
    from umbel.app.stations import Station
    from umbel.operations import Operations
    from umbel.worker import Worker, WorkerOptions
    from umbel.worker.intake import Intake

P = ParamSpec("P")
R = TypeVar("R")
Service_ = TypeVar("Service_", bound=Callable[[], Coroutine[Any, Any, None]])


class Umbel:
    """An application: its tasks, and where they are published to.

    ``Umbel()`` reads UMBEL_URL and falls back to ``sqlite:///umbel.db`` in the current folder.
    Nothing is opened before it is used.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        broker: str | None = None,
        brokers: Mapping[str, str] | None = None,
        store: str | None = None,
        namespace: str | None = None,
        deadline: float | None = None,
        backlog: str | None = None,
        backlog_limit: int | None = None,
        max_message: int | None = None,
        format: str | None = None,
        pickle_key: str | None = None,
        keep_days: float | None = None,
        keep_count: int | None = None,
        missing_task_days: float | None = None,
        route_idle: float | None = None,
        keys: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        if url is not None and broker is not None:
            raise ConfigurationError("url and broker: give one of them")
        given = {
            "broker": url or broker,
            "brokers": brokers,
            "store": store,
            "namespace": namespace,
            "deadline": deadline,
            "backlog": backlog,
            "backlog_limit": backlog_limit,
            "max_message": max_message,
            "format": format,
            "pickle_key": pickle_key,
            "keep_days": keep_days,
            "keep_count": keep_count,
            "missing_task_days": missing_task_days,
            "route_idle": route_idle,
            "keys": keys,
        }
        self.settings = Settings.resolve(given, os.environ)
        self.clock = clock or SystemClock()
        self.registry = Registry()
        self._services: list[Service] = []
        self.telemetry = Telemetry()
        self.codec = BodyCodec(
            content_type=self.settings.content_type,
            limit=self.settings.max_message,
            pickle_key=self.settings.pickle_key.encode() or None,
        )
        self.backend = open_backend(self.settings, self.clock, self.telemetry)
        self._keys = self._open_keys()
        self._desk = Client(
            self.backend, self.settings, self.codec, self.clock, self.telemetry, self._keys
        )
        self.routes = AppRoutes(self._desk)
        """Which worker has which affinity key."""
        self.inbox = InboxTasks()
        """What every worker does when told: ``app.inbox.health.options(worker=3).delay()``."""
        for command in self.inbox.all().values():
            command.bind(self._desk)

    # --- declaring ---------------------------------------------------------------------------

    @overload
    def task(  # type: ignore[overload-overlap]  # a coroutine function is the closer match
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> IOTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> CPUTask[P, R]: ...
    @overload
    def task(
        self, /, *, name: str | None = None, **declaration: Unpack[Declaration]
    ) -> Decorator: ...
    def task(self, function: Any = None, /, *, name: str | None = None, **declaration: Any) -> Any:
        """Declare a task: ``@app.task`` or ``@app.task(queue="mail", retry=Retry(10))``.

        Raises:
            ConfigurationError: an option is wrong, or another function has the name.
        """
        options = TaskOptions(**declaration)
        if function is not None:
            return self._own(declare(function, name, options))
        return lambda function: self._own(declare(function, name, options))

    def queue(
        self,
        name: str,
        *,
        limit: int | Limit | Sequence[int | Limit] | None = None,
        rate: str | Rate | Sequence[str | Rate] | None = None,
    ) -> None:
        """Declare what everything in a queue has to pass, beside what its task declares.

        Raises:
            ConfigurationError: an option is wrong.
        """
        if not storable_name(name):
            raise ConfigurationError(f"queue={name!r}: give a name of 1 to 255 characters")
        self.registry.queue_gates[name] = Gating(f"@{name}", as_limits(limit), as_rates(rate))

    def pool(
        self,
        name: str,
        members: Sequence[str] | Mapping[str, Mapping[str, Any]] = (),
        *,
        ttl: float | None = None,
        check: Check | None = None,
        choose: str = "least-recently-used",
    ) -> Pool:
        """Declare a pool of members outside, each used by one job at a time.

        ``members`` are names, or names with data; ``umbel pools`` changes them at run time. A job
        keeps its member for ``ttl`` seconds at most, then it is stopped as by a timeout. ``check``
        is called with a member's name before it is handed out; false or an error sets it aside.

        Raises:
            ConfigurationError: an option is wrong, or another pool has the name.
        """
        pool = Pool(name, members, ttl=ttl, check=check, choose=choose)
        self.registry.add_pool(pool)
        return pool

    def service(self, function: Service_, /) -> Service_:
        """Declare a coroutine function that every worker runs for as long as it lives.

        It is started again when it fails, and cancelled when the worker has stopped its tasks.
        """
        if not inspect.iscoroutinefunction(function):
            raise ConfigurationError(f"{function!r}: a service is an async def without parameters")
        self._services.append(UserService(function.__qualname__, function))
        return function

    def include(self, *modules: ModuleType) -> None:
        """Bind the free ``@task`` functions of these modules to this application."""
        for module in modules:
            for value in list(vars(module).values()):
                if isinstance(value, Task):
                    self._own(value)

    def _own(self, task: Any) -> Any:
        self.registry.add(task)
        task.bind(self._desk, self.registry.queue_gates)
        if task.declared.broadcast:
            task.announcement = announcement(task, self._desk)
            task.announcement.bind(self._desk)
        return task

    # --- publishing --------------------------------------------------------------------------

    def publish_many(self, signatures: Sequence[Signature[R]]) -> list[Handle[R]]:
        """Publish many calls in one round trip: all of them, or none. See ``Task.delay``."""
        return self._desk.send(signatures)

    async def apublish_many(self, signatures: Sequence[Signature[R]]) -> list[Handle[R]]:
        """``publish_many`` for async code."""
        return await self._desk.asend(signatures)

    def publish_event(self, event: bytes) -> Handle[Any]:
        """Publish a CloudEvent in structured JSON, as another language would write it.

        Raises:
            BadMessage: it is none; the text names the field.
        """
        return self._desk.send_envelope(self._foreign(read(event)))

    def kept(self) -> Held | None:
        """What a backlog on disk or in a database holds; None where there is none."""
        return self._desk.kept()

    def flush(self, timeout: float) -> int:
        """Publish what is kept, for so many seconds; how many messages are left."""
        return self._desk.flush(timeout)

    def handle(self, job: str) -> Handle[Any]:
        """A handle for a job published elsewhere or before. It is asked for when used."""
        return Handle(job, self._desk)

    # --- running -----------------------------------------------------------------------------

    def worker(self, options: WorkerOptions | None = None) -> Worker:
        """A worker for this application's tasks; ``await worker.run()`` runs it."""
        from umbel.router import Receiver, Router, strategy
        from umbel.worker import Worker, WorkerOptions

        options = options or WorkerOptions(queues=tuple(self.registry.queues()))
        receiver = Receiver(options.remember)
        order = strategy(options.order, options.weights)

        def open_intake() -> Intake:
            if isinstance(self.backend, LinkBackend):
                return self.backend.intake(options.queues)
            return Router(
                self.backend.open(),
                queues=options.queues,
                receiver=receiver,
                clock=self.clock,
                telemetry=self.telemetry,
                order=order,
            )

        return Worker(
            open_intake,
            self.registry,
            options,
            codec=self.codec,
            clock=self.clock,
            telemetry=self.telemetry,
            open_upkeep=self._open_upkeep,
            services=self._services,
            transactions=self.backend.transactions(),
            keys=self._keys,
            shared=not self.settings.broker.startswith("sqlite:"),  # a file has one owner
        )

    def router(self, listen: str, *, operate: bool = False) -> Station:
        """A router for workers and publishers elsewhere; ``await router.run()`` runs it.

        Made inside the event loop that runs it. They reach it at ``listen``; with ``operate`` they
        may also do there what operators do.
        """
        return self._station(listen, self._open_upkeep, operate=operate)

    def publisher(self, listen: str) -> Station:
        """A publisher that others on this machine or elsewhere share; ``run`` as a router."""
        return self._station(listen, None, operate=False)

    def _station(
        self,
        listen: str,
        open_upkeep: Callable[[float], list[Callable[[], Awaitable[object]]]] | None,
        *,
        operate: bool,
    ) -> Station:
        if isinstance(self.backend, LinkBackend):
            raise ConfigurationError(
                f"broker={self.settings.broker!r}: a link; who serves links needs the broker's own"
            )
        try:
            from umbel.app.stations import Station
            from umbel.backends.amqp.address import Home
        except ImportError as error:
            raise ConfigurationError(
                f"links need Qpid Proton: pip install 'umbel[amqp]' ({error})"
            ) from None
        home = Home(listen)
        if not home.own:
            raise ConfigurationError(
                f"listen={listen!r}: give umbel://, umbel+tcp:// or umbel+unix://"
            )
        self._desk.open()  # what an earlier process kept is published without waiting for a message
        return Station(
            home,
            self.backend.open,
            self._publish_for_others,
            open_upkeep=open_upkeep,
            operate=operate,
            clock=self.clock,
            telemetry=self.telemetry,
        )

    async def _publish_for_others(self, envelopes: Sequence[Envelope]) -> list[Published]:
        return await self._desk.asend_envelopes([self._foreign(one) for one in envelopes])

    def _foreign(self, envelope: Envelope) -> Envelope:
        """A message from elsewhere as one of ours. Raises BadMessage, MessageTooLarge."""
        if envelope.type is not MessageType.COMMAND:
            raise BadMessage("type", f"a job is a {MessageType.COMMAND}, not a {envelope.type}")
        self.codec.measure(envelope.body.data, what=f"event {envelope.id}")
        namespace = self.settings.namespace
        if SEAL in envelope.headers and envelope.namespace != namespace:
            raise BadMessage(
                "namespace",
                f"it is signed for {envelope.namespace!r}, and here is {namespace!r}; give the"
                f" sender namespace={namespace!r}",
            )
        known = self.registry.get(envelope.subject)
        kind = known.kind if known is not None else envelope.kind
        return replace(envelope, kind=kind, namespace=namespace)

    def operations(self) -> Operations:
        """What operators read and change, for the event loop that will use it."""
        from umbel.operations import Operations

        backend = self.backend.open()
        return Operations(
            backend.broker,
            backend.records,
            backend.registry,
            backend.control,
            backend.gates,
            backend.steps,
            backend.deployments,
            backend.routes,
            clock=self.clock,
            namespace=self.settings.namespace,
        )

    def _open_keys(self) -> KeyFile | None:
        def trouble(error: str) -> None:
            self.telemetry.emit(events.KeysUnreadable(error=error))

        if not self.settings.keys:
            return None
        return KeyFile(Path(self.settings.keys), self.clock, trouble)

    def close(self) -> None:
        """Close connections. Using the application again opens new ones."""
        self._desk.close()

    def _open_upkeep(self, every: float) -> list[Callable[[], Awaitable[object]]]:
        from umbel.router import DeadWorkerReaper, DeploymentReaper, MissingTasks, Pruner

        if isinstance(self.backend, LinkBackend):
            return []  # the router does it
        backend = self.backend.open()
        common: dict[str, Any] = {"clock": self.clock, "telemetry": self.telemetry}
        age, keep = self.settings.keep_days * 86_400, self.settings.keep_count
        lifeline = DeadWorkerReaper(
            backend.registry,
            backend.broker,
            backend.routes,
            **common,
            every=every,
            idle=self.settings.route_idle or None,
        )
        return [
            lifeline.look,
            Pruner(backend.records, age=age, keep=keep, crowd=lifeline.living, **common).look,
            DeploymentReaper(backend.deployments, telemetry=self.telemetry).look,
            MissingTasks(
                backend.registry,
                backend.control,
                backend.records,
                backend.deployments,
                after=self.settings.missing_task_days * 86_400,
                crowd=lifeline.living,
                **common,
            ).look,
        ]
