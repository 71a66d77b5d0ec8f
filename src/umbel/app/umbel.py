"""``Umbel``: the composition root. It builds the parts and gives each what it uses."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, Unpack, overload

from umbel.app.backends import open_backend
from umbel.app.broadcasts import fan_out_task
from umbel.app.client import Client
from umbel.app.foreign_messages import ForeignMessages
from umbel.app.included_modules import find_modules
from umbel.app.link_backend import LinkBackend
from umbel.app.routes import AppRoutes
from umbel.backends import Roles
from umbel.backends.backlog import BacklogStatus
from umbel.clock import Clock, SystemClock
from umbel.configuration import Settings, read_config_file
from umbel.errors import ConfigurationError
from umbel.keys import KeyFile, UserKeyFile, user_key_path
from umbel.messages import BodyCodec, Envelope
from umbel.messages.wire import read
from umbel.publisher import emit_or_log
from umbel.services import Service, UserService
from umbel.tasks import Handle, Registry, Signature, Task, TaskOptions
from umbel.tasks.composing import Composable
from umbel.tasks.gates import Check, GateSet, Limit, Pool, Rate, as_limits, as_rates
from umbel.tasks.hooks import Hooks
from umbel.tasks.inbox import InboxTasks
from umbel.tasks.policies import storable_name
from umbel.tasks.tables import TaskTables
from umbel.tasks.task import CPUTask, Declaration, Decorator, IOTask, declare, module_name
from umbel.tasks.workflow import Workflow, WorkflowDecorator
from umbel.telemetry import Telemetry, events

if TYPE_CHECKING:
    # A process that only publishes never loads these.
    from umbel.app.batches import Batch
    from umbel.app.link_service import LinkService
    from umbel.app.schedules import DeclaredSchedules
    from umbel.backends import Backend
    from umbel.charts import Tally
    from umbel.messages import Policy
    from umbel.operations import Operations
    from umbel.worker import Worker, WorkerOptions
    from umbel.worker.intake import Intake

P = ParamSpec("P")
R = TypeVar("R")
Service_ = TypeVar("Service_", bound=Callable[[], Coroutine[Any, Any, None]])


class Umbel:
    """An application: its tasks, and the broker and store that they use.

    ``Umbel()`` reads UMBEL_URL and falls back to ``sqlite:///umbel.db`` in the current folder.
    Connections are opened on first use.
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
        self.config_file = read_config_file(os.environ)
        """What ``umbel.toml`` sets."""
        self.settings = Settings.resolve(given, os.environ, self.config_file)
        self.task_tables = TaskTables(self.config_file.source, self.config_file.tasks)
        self.clock = clock or SystemClock()
        self.registry = Registry()
        self._services: list[Service] = []
        self.workflows: dict[str, Workflow[..., Any]] = {}
        """The workflows that this application declares, by name."""
        self._schedules: DeclaredSchedules | None = None
        self._tally: Tally | None = None
        self.telemetry = Telemetry()
        self.hooks = Hooks(self._report_hook)
        """What ``use`` was given."""
        self.codec = BodyCodec(
            content_type=self.settings.content_type,
            limit=self.settings.max_message,
            pickle_key=self.settings.pickle_key.encode() or None,
        )
        self.backend = open_backend(self.settings, self.clock, self.telemetry)
        self._keys = self._open_keys()
        self._client = Client(
            self.backend,
            self.settings,
            self.codec,
            self.clock,
            self.telemetry,
            self._keys,
            self.hooks,
        )
        self.routes = AppRoutes(self._client)
        """The routes: which worker has which affinity key."""
        self.inbox = InboxTasks()
        """Tasks that every worker has: ``app.inbox.health.options(worker=3).delay()``."""
        self._foreign = ForeignMessages(self._client, self.registry, self.settings.namespace)
        for command in self.inbox.all().values():
            command.bind(self._client)

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
        options = TaskOptions.from_declaration(declaration)
        if function is not None:
            return self._bind(declare(function, name, options))
        return lambda function: self._bind(declare(function, name, options))

    def queue(
        self,
        name: str,
        *,
        limit: int | Limit | Sequence[int | Limit] | None = None,
        rate: str | Rate | Sequence[str | Rate] | None = None,
    ) -> None:
        """Declare limits and rates for all jobs of a queue, in addition to those of their tasks.

        Raises:
            ConfigurationError: an option is wrong.
        """
        if not storable_name(name):
            raise ConfigurationError(f"queue={name!r}: give a name of 1 to 255 characters")
        limits, rates = as_limits(limit), as_rates(rate)
        counted: list[Limit | Rate] = [*limits, *rates]
        if any(one.per == "worker" for one in counted):
            raise ConfigurationError(
                f'per="worker" of the queue {name!r}: only tasks can have it; declare it there'
            )
        self.registry.queue_gates[name] = GateSet(f"@{name}", limits, rates)

    def pool(
        self,
        name: str,
        members: Sequence[str] | Mapping[str, Mapping[str, Any]] = (),
        *,
        ttl: float | None = None,
        check: Check | None = None,
        choose: str = "least-recently-used",
    ) -> Pool:
        """Declare a pool of external members, each used by one job at a time.

        ``members`` are names, or names with data; ``umbel pools`` changes them at run time. A job
        keeps its member for at most ``ttl`` seconds; then it is stopped as by a timeout. ``check``
        is called with a member's name before a job gets the member. If it returns false or raises,
        the member is quarantined.

        Raises:
            ConfigurationError: an option is wrong, or another pool has the name.
        """
        pool = Pool(name, members, ttl=ttl, check=check, choose=choose)
        self.registry.add_pool(pool)
        return pool

    def service(self, function: Service_, /) -> Service_:
        """Declare a coroutine function that every worker runs from start to stop.

        The worker starts it again if it fails, and cancels it after its tasks have stopped.
        """
        if not inspect.iscoroutinefunction(function):
            raise ConfigurationError(f"{function!r}: a service is an async def without parameters")
        self._services.append(UserService(function.__qualname__, function))
        return function

    def use(self, hook: object) -> None:
        """Call the methods of this hook around jobs; see ``umbel.Hook`` for what there is.

        Hooks are called in the order in which they are given here. Workers and publishers call the
        hooks that they were given when they started.

        Raises:
            ConfigurationError: it has no hook, or one with an unknown name.
        """
        self.hooks.add(hook)

    def include(self, *modules: ModuleType | str) -> None:
        """Bind the free ``@task`` functions of these modules to this application.

        Each is a module or its name, as in ``app.include("shop.tasks")``. Of a package, all modules
        below it are imported and included.

        Raises:
            ConfigurationError: there is no such module.
        """
        for module in (found for given in modules for found in find_modules(given)):
            for value in list(vars(module).values()):
                if isinstance(value, Task):
                    self._bind(value)

    def _bind(self, task: Any) -> Any:
        self.task_tables.apply(task)
        self.registry.add(task)
        task.bind(self._client, self.registry.queue_gates)
        if task.declared.broadcast:
            task.fan_out_task = fan_out_task(task, self._client)
            task.fan_out_task.bind(self._client)
        if task.declared.schedule_options():
            self.schedules.add_task(task)
        return task

    def schedule(
        self,
        name: str,
        signature: Composable[Any],
        *,
        cron: str | None = None,
        every: float | None = None,
        at: datetime | None = None,
        calendar: Callable[[datetime], datetime | None] | None = None,
        zone: str = "UTC",
        phase: int = 0,
        overlap: Literal["skip", "queue", "allow"] = "skip",
        catch_up: Literal["none", "last", "all"] = "last",
        jitter: int = 0,
    ) -> None:
        """Publish a call by time: ``app.schedule("nightly", report.s(7), cron="0 3 * * *")``.

        It may also be a canvas, or a run of a workflow: ``fulfil.s(order)``.

        Give one of ``cron``, ``every`` (seconds, counted from 1970, and ``phase`` seconds later),
        ``at``, and ``calendar``, a function that returns the first time after its argument. The
        times of ``cron`` are in ``zone``. ``overlap`` is for a tick whose predecessor has not
        ended, ``catch_up`` for ticks that were missed. ``jitter`` delays each by up to so many
        seconds.

        Raises:
            ConfigurationError: an option is wrong, another schedule has the name, or it never
                fires.
        """
        self.schedules.add(
            name,
            signature,
            cron=cron,
            every=every,
            at=at,
            calendar=calendar,
            zone=zone,
            phase=phase,
            overlap=overlap,
            catch_up=catch_up,
            jitter=jitter,
        )

    @overload
    def workflow(self, function: Callable[P, Composable[R]], /) -> Workflow[P, R]: ...
    @overload
    def workflow(
        self,
        *,
        name: str | None = None,
        deadline: float | None = None,
        compensate: bool = True,
        limit: int | None = None,
    ) -> WorkflowDecorator: ...
    def workflow(  # type: ignore[misc]  # mypy does not match the names of keywords here
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        deadline: float | None = None,
        compensate: bool = True,
        limit: int | None = None,
    ) -> Any:
        """Declare a workflow: a function that is called once, with placeholders, and builds it.

        ``deadline`` is how many seconds a run may take. ``compensate=False`` leaves a run that is
        cancelled as it is; a run that fails is undone in any case. ``limit`` is how many runs may
        be active at once; the others wait in the order in which they were started.

        Raises:
            ConfigurationError: the graph is wrong; the text names the nodes.
        """
        from umbel.graphs import check_workflow, mermaid

        def declare(function: Callable[..., Any]) -> Workflow[..., Any]:
            called = name or f"{module_name(function)}.{function.__qualname__}"
            declared: Workflow[..., Any] = Workflow(
                function, called, deadline=deadline, compensate=compensate, limit=limit
            )
            check_workflow(declared)
            declared.draws = mermaid
            known = self.workflows.get(called)
            if known is not None and _place_of(known.function) != _place_of(function):
                places = f"{_place_of(known.function)} and {_place_of(function)}"
                raise ConfigurationError(
                    f"two workflows are named {called!r} ({places}); give one of them name=..."
                )
            self.workflows[called] = declared
            return declared

        return declare if function is None else declare(function)

    @property
    def schedules(self) -> DeclaredSchedules:
        """The schedules that this application declares."""
        if self._schedules is None:
            from umbel.app.schedules import DeclaredSchedules

            self._schedules = DeclaredSchedules(self.build, self.clock)
        return self._schedules

    def build(self, signature: Composable[Any]) -> Envelope:
        """Return the message of a call or canvas, without publishing it. Raise what delay does."""
        return self._client.build(signature)

    # --- publishing --------------------------------------------------------------------------

    def publish_many(self, signatures: Sequence[Signature[R]]) -> list[Handle[R]]:
        """Publish many calls in one round trip: all of them or none. See ``Task.delay``.

        If one of them is a canvas, each is published by itself: use ``group`` for all or none.
        """
        return self._client.send(signatures)

    async def apublish_many(self, signatures: Sequence[Signature[R]]) -> list[Handle[R]]:
        """``publish_many`` for async code."""
        return await self._client.asend(signatures)

    def batch(self, *, errors: Policy = "fail", queue: str = "default") -> Batch:
        """Collect the jobs that are published in a block, and join them at its end.

        ``with app.batch() as batch:`` begins the block, in async code ``async with``. After it,
        ``batch.handle.get()`` returns the results in the order of publishing.

        The jobs start at once. ``errors`` is ``"fail"`` or ``"collect"``, as for a group. The
        ``queue`` is that of the job that waits for the others.
        """
        from umbel.app.batches import Batch

        return Batch(self._client, errors, queue, self.settings.namespace)

    def publish_event(self, event: bytes) -> Handle[Any]:
        """Publish a CloudEvent in structured JSON, such as one from a program in another language.

        Raises:
            BadMessage: it is not valid; the text names the field.
        """
        return self._foreign.publish(read(event))

    def backlog_status(self) -> BacklogStatus | None:
        """Return what a backlog on disk or in a database holds; None if there is none."""
        return self._client.backlog_status()

    def flush(self, timeout: float) -> int:
        """Publish the backlog for up to ``timeout`` seconds. Return how many messages are left."""
        return self._client.flush(timeout)

    def handle(self, job: str) -> Handle[Any]:
        """Return a handle for a job that was published earlier or by another process."""
        return Handle(job, self._client)

    # --- running -----------------------------------------------------------------------------

    def worker(self, options: WorkerOptions | None = None) -> Worker:
        """Return a worker for this application's tasks; ``await worker.run()`` runs it."""
        from umbel.router import DuplicateFilter, Router, strategy
        from umbel.worker import Worker, WorkerOptions

        options = options or WorkerOptions(queues=tuple(self.registry.queues()))
        duplicates = DuplicateFilter(options.remember)
        order = strategy(options.order, options.weights)
        backend = self.backend

        def open_intake() -> Intake:
            if isinstance(backend, LinkBackend):
                return backend.intake(options.queues)
            return Router(
                backend.open(),
                queues=options.queues,
                duplicates=duplicates,
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
            open_upkeep=self._upkeep(),
            services=self._services,
            open_services=partial(self._open_worker_services, options),
            transactions=backend.transactions(),
            keys=self._keys,
            hooks=self.hooks,
            shared=not self.settings.broker.startswith("sqlite:"),  # a file has one owner
            tally=self._open_tally(options),
        )

    def router(self, listen: str, *, operate: bool = False) -> LinkService:
        """Return a router for workers and publishers in other processes.

        Call this in the event loop in which ``await router.run()`` runs it. Clients connect to
        ``listen``. With ``operate=True`` they may also use the commands of operators.
        """
        return self._link_service(listen, self._upkeep(is_router=True), operate=operate)

    def publisher(self, listen: str) -> LinkService:
        """Return a publisher that other processes share; it runs like a router."""
        return self._link_service(listen, None, operate=False)

    def _link_service(
        self,
        listen: str,
        open_upkeep: Callable[[float], list[Callable[[], Awaitable[object]]]] | None,
        *,
        operate: bool,
    ) -> LinkService:
        if isinstance(self.backend, LinkBackend):
            raise ConfigurationError(
                f"broker={self.settings.broker!r}: a link; a process that serves links needs"
                " the URL of the broker itself"
            )
        try:
            from umbel.app.link_service import LinkService
            from umbel.backends.amqp.address import AmqpAddress
        except ImportError as error:
            raise ConfigurationError(
                f"links need Qpid Proton: pip install 'umbel[amqp]' ({error})"
            ) from None
        address = AmqpAddress(listen)
        if not address.is_link:
            raise ConfigurationError(
                f"listen={listen!r}: give umbel://, umbel+tcp:// or umbel+unix://"
            )
        self._client.open()  # starts publishing what an earlier process left in the backlog
        return LinkService(
            address,
            self.backend.open,
            self._foreign.apublish,
            open_upkeep=open_upkeep,
            # A router schedules for the workers behind it, a publisher does not.
            open_services=partial(self._open_scheduler, f"router {address.label}", True)
            if open_upkeep is not None
            else None,
            operate=operate,
            clock=self.clock,
            telemetry=self.telemetry,
        )

    def operations(self, namespace: str | None = None) -> Operations:
        """Return the operations that operators use, for the current event loop.

        ``namespace`` is another namespace on the same servers. Raises ConfigurationError.
        """
        from umbel.operations import Operations

        backend, settings = self.backend, self.settings
        if namespace is not None and namespace != settings.namespace:
            settings = replace(settings, namespace=namespace)
            backend = open_backend(settings, self.clock, self.telemetry)
        return Operations(
            backend.open(),
            clock=self.clock,
            namespace=settings.namespace,
            codec=self.codec,
            registry=self.registry,
            open_eraser=backend.eraser,
        )

    def _open_worker_services(self, options: WorkerOptions, roles: Roles) -> list[Service]:
        scheduler = self._open_scheduler(options.name, options.scheduler, roles)
        tally = self._open_tally(options)
        if tally is None:
            return scheduler
        from umbel.charts import Recorder

        depths = roles.broker.depths
        recorder = Recorder(roles.coordination, tally, clock=self.clock, read_depths=depths)
        return [*scheduler, recorder]

    def _open_tally(self, options: WorkerOptions) -> Tally | None:
        """Return what counts the jobs of this process, or None if they are not counted.

        Behind a link, a worker may not write what it counts.
        """
        if isinstance(self.backend, LinkBackend) or not options.charts:
            return None
        from umbel.charts import Tally

        if self._tally is None:
            self._tally = Tally()
        return self._tally

    def _open_scheduler(self, candidate: str, may_lead: bool, roles: Roles) -> list[Service]:
        """Return the scheduler of a process. Behind a link, the router schedules."""
        declared = self._schedules.all() if self._schedules is not None else []
        if isinstance(self.backend, LinkBackend) or not (may_lead or declared):
            return []
        from umbel.schedules import Scheduler

        return [
            Scheduler(
                roles,
                declared,
                namespace=self.settings.namespace,
                candidate=candidate,
                may_lead=may_lead,
                clock=self.clock,
                telemetry=self.telemetry,
                hooks=self.hooks,
            )
        ]

    def _upkeep(
        self, *, is_router: bool = False
    ) -> Callable[[float], list[Callable[[], Awaitable[object]]]]:
        from umbel.app.upkeep import open_upkeep

        given = (self.backend, self.settings, self.clock, self.telemetry)
        return partial(open_upkeep, *given, is_router=is_router)

    def _report_hook(self, hook: str, error: str) -> None:
        self.telemetry.emit(events.HookFailed(hook=hook, error=error))

    def _open_keys(self) -> KeyFile | None:
        """Return the keys of the settings; on one machine, otherwise, those of the user."""

        def report_unreadable(error: str) -> None:
            self.telemetry.emit(events.KeysUnreadable(error=error))

        if self.settings.keys:
            return KeyFile(Path(self.settings.keys), self.clock, report_unreadable)
        if not self.settings.is_local_file:
            return None
        return UserKeyFile(
            user_key_path(os.environ),
            self.clock,
            report_unreadable,
            lambda: emit_or_log(self.telemetry, events.SigningNotInstalled()),
            lambda error: emit_or_log(self.telemetry, events.UserKeyUnusable(error=error)),
        )

    @contextmanager
    def redirected(self, url: str, *, deadline: float, clock: Clock) -> Iterator[Client]:
        """Use another broker and store until the block ends; yield the client. For tests.

        All tasks, handles and routes of the application use it, also those made before.
        """
        before = self.settings, self.clock, self.backend
        elsewhere: dict[str, Any] = {"broker": url, "brokers": {}, "store": "", "keys": ""}
        settings = replace(self.settings, **elsewhere, backlog="none", deadline=deadline)
        self._use(settings, clock, open_backend(settings, clock, self.telemetry))
        try:
            yield self._client
        finally:
            self._use(*before)

    def _use(self, settings: Settings, clock: Clock, backend: Backend) -> None:
        self.settings, self.clock, self.backend = settings, clock, backend
        self._keys = self._open_keys()
        self._client.use(backend, settings, clock, self._keys)

    def close(self) -> None:
        """Close the connections. Using the application again opens new ones."""
        self._client.close()


def _place_of(function: Callable[..., Any]) -> str:
    """Return where a function is declared. A module that is reloaded declares it there again."""
    return f"{function.__code__.co_filename}:{function.__qualname__}"
