"""``Umbel``: the composition root. Builds the parts and hands each what it uses."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from msgspec.structs import replace

from umbel.app.desk import Desk
from umbel.app.sites import site
from umbel.clock import Clock, SystemClock
from umbel.configuration import Settings
from umbel.errors import BadMessage, ConfigurationError
from umbel.messages import BodyCodec, MessageType
from umbel.messages.wire import read
from umbel.publisher.backlogs import Held
from umbel.services import Service, UserService
from umbel.tasks import Handle, Registry, Signature, Task, TaskOptions
from umbel.tasks.task import CPUTask, Declaration, Decorator, IOTask, declare
from umbel.telemetry import Telemetry

if TYPE_CHECKING:
    # A process that only publishes never loads these.
    from umbel.operations import Operations
    from umbel.worker import Worker, WorkerOptions

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
        clock: Clock | None = None,
    ) -> None:
        if url is not None and broker is not None:
            raise ConfigurationError("url and broker: give one of them")
        given = {
            "broker": url or broker,
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
        self.site = site(self.settings, self.clock)
        self._desk = Desk(self.site, self.settings, self.codec, self.clock, self.telemetry)

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
        task.bind(self._desk)
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
        envelope = read(event)
        if envelope.type is not MessageType.COMMAND:
            raise BadMessage("type", f"a job is a {MessageType.COMMAND}, not a {envelope.type}")
        self.codec.measure(envelope.body.data, what=f"event {envelope.id}")
        known = self.registry.get(envelope.subject)
        kind = known.kind if known is not None else envelope.kind
        namespace = self.settings.namespace
        return self._desk.send_envelope(replace(envelope, kind=kind, namespace=namespace))

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
        from umbel.router import Receiver, Router
        from umbel.worker import Worker, WorkerOptions

        options = options or WorkerOptions(queues=tuple(self.registry.queues()))
        receiver = Receiver(options.remember)

        def open_intake() -> Router:
            return Router(
                self.site.open(),
                queues=options.queues,
                receiver=receiver,
                clock=self.clock,
                telemetry=self.telemetry,
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
        )

    def operations(self) -> Operations:
        """What operators read and change, for the event loop that will use it."""
        from umbel.operations import Operations

        backend = self.site.open()
        return Operations(
            backend.broker,
            backend.records,
            backend.registry,
            backend.control,
            clock=self.clock,
            namespace=self.settings.namespace,
        )

    def close(self) -> None:
        """Close connections. Using the application again opens new ones."""
        self._desk.close()

    def _open_upkeep(self) -> list[Callable[[], Awaitable[object]]]:
        from umbel.router import Lifeline, Pruner

        backend = self.site.open()
        common: dict[str, Any] = {"clock": self.clock, "telemetry": self.telemetry}
        age, keep = self.settings.keep_days * 86_400, self.settings.keep_count
        return [
            Lifeline(backend.registry, backend.broker, **common).look,
            Pruner(backend.records, age=age, keep=keep, **common).look,
        ]
