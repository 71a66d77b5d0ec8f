"""The client of an application: publishes for tasks, and reads and cancels jobs for handles.

Messages are published in the caller's own thread. Everything that waits for the store runs on the
bridge's event loop. A call inside another call of the same thread, in a signal handler or a
finalizer, uses other connections: see ``ReentrantConnections``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

import anyio
from msgspec.structs import replace

from umbel.app.backends import open_backlog, store_url
from umbel.app.batches import Batch, batch_of
from umbel.app.connections import Connections
from umbel.app.graphs import (
    BuiltGraph,
    build_graph,
    build_growth,
    check_place,
    check_transaction,
    is_graph,
    publish_until,
    replacement_of,
)
from umbel.app.reentrant import ReentrantConnections
from umbel.backends import Backend, Published, Roles, Routes, WorkerIndex, reentry
from umbel.backends.backlog import BacklogStatus
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
    UnknownWorker,
)
from umbel.graphs import (
    TEMPLATE_ROOT,
    Graph,
    GraphNode,
    ResultReader,
    cancel_graph,
    give_signal,
    launch_envelope,
    read_graph,
)
from umbel.keys import KeyFile
from umbel.messages import BodyCodec, Envelope, Growth, Record, State
from umbel.publisher import Bridge, Builder, Forwarder, emit_or_log, waker
from umbel.resilience import Backoff
from umbel.tasks import Handle, Run, Signature, current_step, running
from umbel.tasks.composing import CanvasMethods, Composable
from umbel.tasks.handle import BroadcastResult
from umbel.tasks.hooks import Hooks
from umbel.telemetry import Telemetry, events

T = TypeVar("T")
_LOOKUP_TIMEOUT_SECONDS = 0.1
"""How long the first lookup of a record, in the caller's own thread, may take."""
_STORE_GRACE_SECONDS = 0.1
"""How long after its timeout a store may take to answer that a job has not finished."""
_SHORT_WAIT_SECONDS = 1.0
"""A shorter wait that ends in a timeout is not explained: the caller may be polling."""
_WARNING_DELAY_SECONDS = 3.0
"""After so long, a caller that waits is told why the job does not start."""
_UPDATE_SECONDS = 5.0
_CUT_UPDATE_SECONDS = 1.0
_MAX_WATCHED = 50
"""For how many nodes of a graph ``updates`` waits at once."""
_FLUSH_CHECK_SECONDS = 0.02
_BACKLOG_CHECKS = Backoff(first=0.02, factor=1.5, cap=0.25, jitter=0.0)
"""Delays between checks whether a job is still in the backlog."""


class InlineJobs(Protocol):
    """Runs the jobs of a client in its callers, instead of in workers: see ``umbel.testing``."""

    def after_publish(self, envelopes: Sequence[Envelope], *, committed: bool) -> None:
        """Called after messages were published, or added to the caller's open transaction."""

    async def aafter_publish(self, envelopes: Sequence[Envelope], *, committed: bool) -> None:
        """``after_publish`` for async code."""

    def before_wait(self, job: str, timeout: float | None) -> float | None:
        """Called before a caller waits for a job. Return the timeout with which to wait."""

    async def abefore_wait(self, job: str, timeout: float | None) -> float | None:
        """``before_wait`` for async code."""


class Client:
    """Publishes the calls of one application's tasks, and answers for their handles.

    It implements ``Sender`` of tasks and ``Jobs`` of handles.
    """

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        codec: BodyCodec,
        clock: Clock,
        telemetry: Telemetry | None = None,
        keys: KeyFile | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self.codec = codec
        self._hooks = hooks
        self.inline_jobs: InlineJobs | None = None
        """Runs the jobs in the callers. None: workers run them."""
        self._telemetry = telemetry or Telemetry()
        self._connections = Connections(backend, settings, clock, self._telemetry)
        self._warned_tasks: set[str] = set()
        self._warned_reasons: set[str] = set()
        self._blocking_tasks: set[str] = set()
        self._next_check = 0.0
        self._checks: set[asyncio.Task[None]] = set()
        self._configure(settings, clock, keys)

    def _configure(self, settings: Settings, clock: Clock, keys: KeyFile | None) -> None:
        self.clock = clock
        self._settings = settings
        self._builder = Builder(self.codec, settings.namespace, clock, keys, self._hooks)
        self._reentrant = ReentrantConnections(
            self._connections,
            clock,
            deadline=settings.deadline,
            has_backlog=settings.backlog != "none",
        )
        self._may_ignore_priority = True
        """Until the broker is known to respect priorities, or the warning was given."""

    def use(self, backend: Backend, settings: Settings, clock: Clock, keys: KeyFile | None) -> None:
        """Close the connections, and use this backend from now on."""
        self.close()
        self._connections.use(backend, settings, clock)
        self._configure(settings, clock, keys)

    # --- publishing --------------------------------------------------------------------------

    def send(self, signatures: Sequence[Signature[Any]]) -> list[Handle[Any]]:
        """Publish from sync code, in the caller's transaction if it gave one."""
        if not signatures:
            return []
        if any(one.is_canvas for one in signatures):
            return self._send_mixed(signatures)
        if _names_workers(signatures):
            signatures = _resolve_workers(signatures, self._worker_indexes())
        envelopes, connection, batch, held = self._prepare(signatures)
        if held:
            published = [Published(envelope.id) for envelope in envelopes]
        elif batch is not None:
            published = self.run_blocking(batch.add(envelopes))
        elif connection is not None:
            broker = self._connections.get().roles.broker
            published = broker.publish_within(envelopes, unwrap(connection))
        else:
            published = self._publish(envelopes)
        if self.inline_jobs is not None and not held:
            new = _without_existing(envelopes, published)
            self.inline_jobs.after_publish(new, committed=connection is None)
        return self._handles(signatures, published)

    async def asend(self, signatures: Sequence[Signature[Any]]) -> list[Handle[Any]]:
        """Publish from async code, in the caller's transaction if it gave one."""
        if not signatures:
            return []
        if any(one.is_canvas for one in signatures):
            return await self._asend_mixed(signatures)
        if _names_workers(signatures):
            signatures = _resolve_workers(signatures, await self._aworker_indexes())
        envelopes, connection, batch, held = self._prepare(signatures)
        if held:
            published = [Published(envelope.id) for envelope in envelopes]
        elif batch is not None:
            published = await self.run_on_loop(batch.add(envelopes))
        elif connection is not None:
            within = await self._connections.backend.unwrap(connection)
            published = await self._connections.get().roles.broker.publish(envelopes, within)
        else:
            published = await self._apublish(envelopes)
        if self.inline_jobs is not None and not held:
            new = _without_existing(envelopes, published)
            await self.inline_jobs.aafter_publish(new, committed=connection is None)
        return self._handles(signatures, published)

    def _prepare(
        self, signatures: Sequence[Signature[Any]]
    ) -> tuple[list[Envelope], Any, Batch | None, bool]:
        """Return the messages, the caller's connection, its batch, and whether they are held."""
        envelopes = self._builder.build(signatures, current_step.get())
        if self._may_ignore_priority:
            self._warn_of_ignored_priority(envelopes)
        connection = self._connection(signatures)
        batch = batch_of(self, connection)
        if connection is not None:
            return envelopes, connection, None, False
        return envelopes, None, batch, self._hold(signatures, envelopes)

    def send_canvas(self, canvas: Composable[Any], first: Sequence[Any]) -> Handle[Any]:
        """Publish a graph from sync code."""
        graph = self._build_graph(canvas, first)
        connection = self._connection_of_graph(graph)
        batch = batch_of(self, connection)
        if connection is not None:
            joins = self._connections.get().roles.joins
            for part in graph.publications.parts:
                joins.add_within(part, unwrap(connection))
            root = graph.root
        else:
            root = self._publish_graph(graph)
            if batch is not None:
                self.run_blocking(batch.collect(root))
        if self.inline_jobs is not None and root == graph.root:
            self.inline_jobs.after_publish(graph.envelopes, committed=connection is None)
        return Handle(root, self, graph.returns)

    async def asend_canvas(self, canvas: Composable[Any], first: Sequence[Any]) -> Handle[Any]:
        """Publish a graph from async code."""
        graph = self._build_graph(canvas, first)
        connection = self._connection_of_graph(graph)
        batch = batch_of(self, connection)
        if connection is not None:
            within = await self._connections.backend.unwrap(connection)
            for part in graph.publications.parts:
                await self._connections.get().roles.joins.add(part, within)
            root = graph.root
        else:
            work = publish_until(
                self._connections.get().roles, graph, self.clock, self._settings.deadline
            )
            with self._as_not_published():
                root = await self.bridge.arun(work, self._graph_deadline(graph))
            if batch is not None:
                await self.run_on_loop(batch.collect(root))
        if self.inline_jobs is not None and root == graph.root:
            await self.inline_jobs.aafter_publish(graph.envelopes, committed=connection is None)
        return Handle(root, self, graph.returns)

    def grow(self, canvas: Composable[Any], run: Run) -> Growth:
        """Return the jobs of a canvas that replaces the job that runs."""
        return build_growth(canvas, run, self._builder)

    def _send_mixed(self, signatures: Sequence[Signature[Any]]) -> list[Handle[Any]]:
        """Publish calls of which some are graphs: each by itself."""
        return [
            self.send_canvas(one, ()) if one.is_canvas else self.send([one])[0]
            for one in signatures
        ]

    async def _asend_mixed(self, signatures: Sequence[Signature[Any]]) -> list[Handle[Any]]:
        return [
            await self.asend_canvas(one, ()) if one.is_canvas else (await self.asend([one]))[0]
            for one in signatures
        ]

    def _build_graph(self, canvas: Composable[Any], first: Sequence[Any]) -> BuiltGraph:
        check_place(canvas)
        return build_graph(canvas, first, self._builder, self.clock)

    def _publish_graph(self, graph: BuiltGraph) -> str:
        def publish(roles: Roles) -> Coroutine[Any, Any, str]:
            return publish_until(roles, graph, self.clock, self._settings.deadline)

        with self._as_not_published():
            if level := reentry.here.level:
                return self._reentrant.ask(level, publish)
            with reentry.entered():
                work = publish(self._connections.get().roles)
                return self.bridge.run(work, self._graph_deadline(graph))

    @property
    def roles(self) -> Roles:
        """The roles of the open connections, for use on the bridge's loop."""
        return self._connections.get().roles

    def run_blocking(self, work: Coroutine[Any, Any, T]) -> T:
        """Publish on the bridge's loop, for a caller that blocks. Raise PublishTimeout."""
        with self._as_not_published(), reentry.entered():
            return self.bridge.run(work, self._settings.deadline)

    async def run_on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """``run_blocking`` for async code."""
        with self._as_not_published():
            return await self.bridge.arun(work, self._settings.deadline)

    def _graph_deadline(self, graph: BuiltGraph) -> float:
        """Return the deadline of a graph: a large one is published in several round trips."""
        return self._settings.deadline * (1 + len(graph.publications.parts))

    @contextmanager
    def _as_not_published(self) -> Iterator[None]:
        """Raise PublishTimeout if the store does not answer in time."""
        try:
            yield
        except (TimeoutError, Unavailable) as error:
            if isinstance(error, UmbelError) and not isinstance(error, Unavailable):
                raise
            why = str(error) or "the store has not answered"
            raise PublishTimeout(
                f"not published within {self._settings.deadline:g} s: {why}. Of a graph, either"
                " all nodes were published, or none will start"
            ) from None

    def _connection_of_graph(self, graph: BuiltGraph) -> Any:
        """Return the connection to publish on: the caller's, that of the running step, or None."""
        place, run = current_step.get(), running.get()
        connection = graph.connection
        if connection is None and place is not None and run is not None and run.task is not None:
            connection = place.connection if run.task.is_bound_to(self) else None
        if connection is not None:
            check_transaction(graph)
        return connection

    def build(self, signature: Any) -> Envelope:
        """Return the message of a call or canvas, without publishing it. Raise what ``delay`` does.

        The message of a canvas contains the graph, which is published when the job runs.
        """
        if isinstance(signature, CanvasMethods) or signature.is_canvas:
            template = signature.options(id=TEMPLATE_ROOT)
            graph = build_graph(template, (), self._builder, self.clock)
            return launch_envelope(graph.publications, self.codec)
        return self._builder.build([signature])[0]

    def send_envelope(self, envelope: Envelope) -> Handle[Any]:
        """Publish a message that was built elsewhere."""
        published = self._publish([envelope])
        if self.inline_jobs is not None:
            new = _without_existing([envelope], published)
            self.inline_jobs.after_publish(new, committed=True)
        return Handle(published[0].id, self)

    async def asend_envelopes(self, envelopes: list[Envelope]) -> list[Published]:
        """Publish messages that were built elsewhere."""
        return await self._apublish(envelopes)

    def _worker_indexes(self) -> list[WorkerIndex]:
        """Return the names and indexes of the workers. Raises PublishTimeout."""
        try:
            if level := reentry.here.level:
                return self._reentrant.ask(level, lambda roles: roles.routes.worker_indexes())
            return self.bridge.run(self.routes.worker_indexes(), self._settings.deadline)
        except TimeoutError as error:
            raise self._name_lookup_error(error) from None

    async def _aworker_indexes(self) -> list[WorkerIndex]:
        try:
            with anyio.fail_after(self._settings.deadline):
                return await self.await_on_loop(self.routes.worker_indexes())
        except TimeoutError as error:
            raise self._name_lookup_error(error) from None

    def _name_lookup_error(self, error: TimeoutError) -> BaseException:
        if isinstance(error, UmbelError):
            return error
        late = f"not published within {self._settings.deadline:g} s"
        return PublishTimeout(f"{late}: the store does not say which worker has the name")

    def _connection(self, signatures: Sequence[Signature[Any]]) -> Any:
        """Return the connection to publish on: the caller's, that of the running step, or None."""
        given, place, run = _shared_connection(signatures), current_step.get(), running.get()
        if given is not None or place is None or run is None or run.task is None:
            return given
        return place.connection if run.task.is_bound_to(self) else None

    def _hold(self, signatures: Sequence[Signature[Any]], envelopes: list[Envelope]) -> bool:
        """Hold the messages until the running task succeeds, if it declares that.

        Return False if they have to be published now.
        """
        run = running.get()
        if run is None or run.task is None or current_step.get() is not None:
            return False
        declared = run.task.declared
        if declared.publishing == "held" and run.task.is_bound_to(self):
            run.hold(envelopes, self.clock.monotonic())
            return True
        if declared.interruptible and declared.publishing is None:
            self._warn_once(run.task.name, signatures)
        return False

    def _warn_once(self, task: str, signatures: Sequence[Signature[Any]]) -> None:
        """Warn that another run of the task may publish these again. Calls with an id are safe."""
        repeatable = [one for one in signatures if one.call_options.id is None]
        if repeatable and task not in self._warned_tasks:
            self._warned_tasks.add(task)
            event = events.PublishNotHeld(task=task, calls=repeatable[0].task.name)
            emit_or_log(self._telemetry, event)

    def _warn_of_ignored_priority(self, envelopes: list[Envelope]) -> None:
        """Warn once if the broker ignores the priority of one of these messages."""
        if reentry.here.level:  # the call that this one interrupts may hold the connections' lock
            return
        broker = self._connections.get().roles.broker
        if broker.capabilities.priority:
            self._may_ignore_priority = False
            return
        brokers, store = self._settings.brokers, store_url(self._settings)
        for one in envelopes:
            if one.priority and brokers.get(one.queue, self._settings.broker) != store:
                self._may_ignore_priority = False
                event = events.PriorityIgnored(task=one.subject, priority=one.priority)
                emit_or_log(self._telemetry, event)
                return

    def _publish(self, envelopes: list[Envelope]) -> list[Published]:
        here = reentry.here
        if level := here.level:
            return self._reentrant.publish(level, envelopes)
        here.level = 1
        try:
            return self._connections.get().publisher.publish(envelopes)
        finally:
            here.level = 0

    async def _apublish(self, envelopes: list[Envelope]) -> list[Published]:
        publisher, answered = self._connections.get().publisher, anyio.Event()
        wake = waker()
        request = publisher.submit(envelopes, lambda: wake(answered.set))
        try:
            with anyio.move_on_after(request.expires_at - self.clock.monotonic()):
                await answered.wait()
            publisher.expire(request)  # has no effect on an answered request
        except BaseException:
            publisher.abandon(request)
            raise
        return request.result()

    def _handles(
        self, signatures: Sequence[Signature[Any]], published: Sequence[Published]
    ) -> list[Handle[Any]]:
        return [
            Handle(one.id, self, _result_type(signature))
            for signature, one in zip(signatures, published, strict=True)
        ]

    # --- the backlog -------------------------------------------------------------------------

    def backlog_status(self) -> BacklogStatus | None:
        """Return what a backlog that other processes can see holds; None if there is none."""
        backlog = open_backlog(self._settings, self.clock)
        if backlog is None or not backlog.durable:
            return None
        try:
            return backlog.status()
        finally:
            backlog.close()

    def flush(self, timeout: float) -> int:
        """Publish the backlog for up to ``timeout`` seconds. Return how many messages are left."""
        forwarder, until = self.forwarder, self.clock.monotonic() + timeout
        with reentry.entered():
            while forwarder is not None and (left := forwarder.status().messages):
                if self.clock.monotonic() >= until:
                    return left
                time.sleep(_FLUSH_CHECK_SECONDS)
        return 0

    @property
    def forwarder(self) -> Forwarder | None:
        """The forwarder of the open connections; None for an application without a backlog."""
        return self._connections.get().forwarder

    # --- jobs --------------------------------------------------------------------------------

    async def record(self, job: str) -> Record:
        """Return the job's record. Raises UnknownJob."""
        return await self._connections.get().roles.records.find(job)

    async def wait_finished(self, job: str, timeout: float | None) -> Record:
        """Return the job's record once it is final. Runs on the bridge's loop.

        The store does not know a message in this process's backlog, so this waits first until the
        message is published.

        Raises:
            UnknownJob: no such job. ResultTimeout: not final in time.
            _InBacklog: the message was not published in time.
        """
        forwarder, until, checks = self.forwarder, self._end_of(timeout), 0
        # No job is missed by checking the backlog first: it is published before it is removed.
        while (
            forwarder is not None
            and forwarder.may_hold_messages
            and await asyncio.to_thread(forwarder.may_hold_job, job)
        ):
            left, checks = self._left(until), checks + 1
            if left is not None and left <= 0:
                raise _InBacklog(f"job {job} has not finished within {timeout} s")
            pause = _BACKLOG_CHECKS.delay(checks)
            await asyncio.sleep(pause if left is None else min(pause, left))
        records, loop = self._connections.get().roles.records, asyncio.get_running_loop()
        warning = loop.call_later(_WARNING_DELAY_SECONDS, self._check_start, job)
        try:
            return await records.wait_finished(job, self._left(until))
        finally:
            warning.cancel()

    def wait_finished_blocking(self, job: str, timeout: float | None) -> Record:
        """Return the job's record once it is final, for a caller that blocks.

        Of a job that was replaced by another, it is the record of that one. A job that is final
        already is found in the caller's own thread: of many jobs that a caller waits for, most have
        finished while it waited for the first.

        Raises:
            UnknownJob: no such job. ResultTimeout: not final in time. Finding out why a job did not
            start may take until the deadline in addition.
        """
        until = self._end_of(timeout)
        while True:
            record = self._wait_blocking(job, timeout)
            if not (following := replacement_of(record)):
                return record
            job, timeout = following, self._left(until)

    def _wait_blocking(self, job: str, timeout: float | None) -> Record:
        given = timeout
        if self.inline_jobs is not None:
            timeout = self.inline_jobs.before_wait(job, timeout)
        until, find = self._end_of(timeout), self._connections.get().find_finished
        if find is not None and not reentry.here.level:
            with reentry.entered(), suppress(Unavailable):  # the wait below tries again
                if (record := find(job, _LOOKUP_TIMEOUT_SECONDS)) is not None:
                    return record
        left = self._left(until)
        try:
            if left != 0.0 and self.inline_jobs is None and (run := running.get()) is not None:
                with suppress(ResultTimeout):
                    return self.bridge.run(self.wait_finished(job, 0.0), _with_grace(left))
                self._check_waiting(job, run)
            return self.bridge.run(self.wait_finished(job, left), _with_grace(left))
        except TimeoutError as error:
            is_asked = _may_be_explained(error, timeout)
            reasons = self.bridge.run(self._hindrances(job)) if is_asked else []
            raise _result_timeout(error, job, given, reasons) from None

    def _check_waiting(self, job: str, run: Run) -> None:
        """Refuse that a thread of a worker waits for a job; warn if its event loop does."""
        task = run.task
        if task is None or not task.is_bound_to(self):  # workers of others run the job
            return
        if task.kind == "cpu":
            raise ConfigurationError(
                f"get() in {task.name}: it would occupy a thread of the worker until job {job} has"
                " ended, and if all threads wait, no job runs; return current.replace(...) instead,"
                " or let another task of a canvas use the result"
            )
        if task.name not in self._blocking_tasks and _is_event_loop():
            self._blocking_tasks.add(task.name)
            emit_or_log(self._telemetry, events.BlockingGet(task=task.name, job=job))

    async def await_finished(self, job: str, timeout: float | None) -> Record:
        """``wait_finished_blocking`` for async code."""
        until = self._end_of(timeout)
        while True:
            record = await self._wait(job, timeout)
            if not (following := replacement_of(record)):
                return record
            job, timeout = following, self._left(until)

    async def _wait(self, job: str, timeout: float | None) -> Record:
        given = timeout
        if self.inline_jobs is not None:
            timeout = await self.inline_jobs.abefore_wait(job, timeout)
        try:
            return await self.bridge.arun(self.wait_finished(job, timeout), _with_grace(timeout))
        except TimeoutError as error:
            is_asked = _may_be_explained(error, timeout)
            reasons = await self.bridge.arun(self._hindrances(job)) if is_asked else []
            raise _result_timeout(error, job, given, reasons) from None

    async def _hindrances(self, job: str) -> list[str]:
        """Return reasons why a job does not start; an empty list if none is known in time."""
        from umbel.operations import Operations  # most processes never load it

        roles, namespace = self._connections.get().roles, self._settings.namespace
        operations = Operations(roles, clock=self.clock, namespace=namespace)
        with suppress(TimeoutError, UmbelError):
            async with asyncio.timeout(self._settings.deadline):
                return await operations.hindrances(await operations.job(job))
        return []

    def _check_start(self, job: str) -> None:
        """Warn if the job does not start. Of many that wait, one is checked every few seconds."""
        now = self.clock.monotonic()
        if now >= self._next_check:
            self._next_check = now + _WARNING_DELAY_SECONDS
            check = asyncio.get_running_loop().create_task(self._warn_of_hindrances(job))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)

    async def _warn_of_hindrances(self, job: str) -> None:
        for reason in await self._hindrances(job):
            if reason not in self._warned_reasons:
                self._warned_reasons.add(reason)
                emit_or_log(self._telemetry, events.JobNotStarting(job=job, reason=reason))

    async def load(self, record: Record) -> Any:
        """Return the result of a job that has succeeded, also if it is results of other jobs.

        Raises:
            NodeFailed: one of these has failed. BadMessage: it cannot be read.
        """
        roles = self._connections.get().roles
        return await ResultReader(roles.joins, roles.records, self.codec).value(record.result)

    def load_blocking(self, record: Record) -> Any:
        """``load`` for a caller that blocks."""
        return self.bridge.run(self.load(record))

    async def load_on_loop(self, record: Record) -> Any:
        """``load`` for async code."""
        return await self.bridge.arun(self.load(record))

    async def signal(self, job: str, name: str, value: Any, sender: str) -> None:
        """Give a signal of a workflow its value. Raises NotAllowed, UnknownJob, BadArguments."""
        await give_signal(self._connections.get().roles, self.codec, job, name, value, sender)

    async def read_graph(self, job: str) -> Graph:
        """Return a graph. Raises NotAllowed if the job is not one, UnknownJob."""
        roles = self._connections.get().roles
        return await read_graph(roles.joins, roles.records, job)

    async def progress(self, job: str) -> tuple[float, float | None]:
        """Return how much of a graph or job is done, and of how much. Raises UnknownJob."""
        record = await self.record(job)
        if is_graph(record.task):
            return (await self.read_graph(job)).progress
        if record.state is State.SUCCEEDED:
            return (1.0, 1.0) if record.progress is None else record.progress
        return record.progress or (0.0, None)

    async def updates(self, job: str) -> AsyncIterator[GraphNode]:
        """Return the nodes of a graph as they end, each once, until all of them have ended.

        Branches and handlers may end after the graph has its result. Handlers that were not needed
        are left out. A notification of the store ends each wait; a slow poll remains.
        """
        seen: set[str] = set()
        while True:
            graph = await self.bridge.arun(self.read_graph(job))
            for node in graph.tasks():
                if node.has_ended and not node.is_unneeded and node.job not in seen:
                    seen.add(node.job)
                    yield node
            live = [node for node in graph.nodes if node.is_expected]
            if graph.state.finished and not live:
                return
            # Those that run end first. If they are too many to be watched, the poll is faster.
            live.sort(key=lambda node: (node.state is not State.RUNNING, node.before != ()))
            is_cut = sum(node.state is State.RUNNING for node in live) > _MAX_WATCHED
            jobs = [job, *(node.job for node in live[:_MAX_WATCHED])]
            seconds = _CUT_UPDATE_SECONDS if is_cut else _UPDATE_SECONDS
            await self.bridge.arun(self._wait_for_any(jobs, seconds))

    async def _wait_for_any(self, jobs: Sequence[str], seconds: float) -> None:
        """Wait until one of these jobs has ended, at most so many seconds."""
        records = self._connections.get().roles.records
        waits = [asyncio.ensure_future(records.wait_finished(one, seconds)) for one in jobs]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def cancel(self, job: str, reason: str) -> bool:
        """Keep a job from running, or stop it; of a graph, all of its nodes.

        Return False if it ended otherwise. Raises UnknownJob.
        """
        roles = self._connections.get().roles
        if is_graph((await roles.records.find(job)).task):
            return await cancel_graph(roles, job, reason)
        found = await self._connections.get().roles.control.cancel([job], reason)
        if job not in found:
            raise UnknownJob(f"no job {job}: never published here, rolled back, or pruned")
        return found[job] in ("running", "cancelled")

    def _end_of(self, timeout: float | None) -> float | None:
        return None if timeout is None else self.clock.monotonic() + timeout

    def _left(self, until: float | None) -> float | None:
        return None if until is None else max(until - self.clock.monotonic(), 0.0)

    # --- the bridge --------------------------------------------------------------------------

    @property
    def bridge(self) -> Bridge:
        """Runs coroutines on the event loop of the connections."""
        return self._connections.bridge

    @property
    def routes(self) -> Routes:
        """The routes of the open connections, for use on the bridge's loop."""
        return self._connections.get().roles.routes

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work on the bridge and block until it is done.

        Raises:
            Unavailable: it was not done within the deadline.
        """
        with self._as_unavailable():
            return self.bridge.run(work, self._settings.deadline)

    async def await_on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work on the bridge and await it from any other loop. Raises Unavailable."""
        with self._as_unavailable():
            return await self.bridge.arun(work, self._settings.deadline)

    @contextmanager
    def _as_unavailable(self) -> Iterator[None]:
        """Raise Unavailable for work that was not done within the deadline."""
        try:
            yield
        except TimeoutError as error:
            if isinstance(error, UmbelError):
                raise
            raise Unavailable(
                f"the store has not answered within {self._settings.deadline:g} s (deadline); check"
                " that its server runs"
            ) from None

    # --- life cycle --------------------------------------------------------------------------

    def open(self) -> None:
        """Open the connections now instead of on first use, and publish the backlog."""
        self._connections.get()

    def close(self) -> None:
        """Close the connections. Using the client again opens new ones."""
        self._connections.close()
        self._reentrant.close()


def _without_existing(
    envelopes: Sequence[Envelope], published: Sequence[Published]
) -> list[Envelope]:
    """Return the envelopes that are new jobs: not those whose unique key another job holds."""
    parts = zip(envelopes, published, strict=True)
    return [envelope for envelope, one in parts if not one.existing]


def _names_workers(signatures: Sequence[Signature[Any]]) -> bool:
    return any(isinstance(signature.call_options.worker, str) for signature in signatures)


def _resolve_workers(
    signatures: Sequence[Signature[Any]], workers: list[WorkerIndex]
) -> list[Signature[Any]]:
    """Replace the names of workers in calls by their indexes. Raises UnknownWorker."""
    return [
        replace(
            one,
            call_options=one.call_options.merged(
                {"worker": _find_index(one.call_options.worker, workers)}
            ),
        )
        if isinstance(one.call_options.worker, str)
        else one
        for one in signatures
    ]


def _find_index(name: str, workers: list[WorkerIndex]) -> int:
    """Return the index of the worker with that name; of a running one if there is one."""
    found = [one for one in workers if one.worker == name]
    if not found:
        raise UnknownWorker(name, [one.worker for one in workers if one.alive])
    return max(found, key=lambda one: one.alive).index


def _shared_connection(signatures: Sequence[Signature[Any]]) -> Any:
    """Return the connection that all calls of a batch share, or None."""
    first = signatures[0].call_options.connection
    if any(signature.call_options.connection is not first for signature in signatures):
        raise ConfigurationError("connection: calls published together must share one connection")
    return first


def _result_type(signature: Signature[Any]) -> Any:
    """Return the type of a call's result. A broadcast has a result for each worker."""
    is_part = signature.call_options.worker is not None
    if signature.task.declared.broadcast and not is_part:
        return dict[str, BroadcastResult]
    return signature.task.parameters.returns


class _InBacklog(ResultTimeout):
    """The message is still in the backlog of this process."""


def _may_be_explained(error: TimeoutError, timeout: float | None) -> bool:
    """Return whether the store has answered that the job has not finished, after a long wait."""
    return type(error) is ResultTimeout and timeout is not None and timeout >= _SHORT_WAIT_SECONDS


def _result_timeout(
    error: TimeoutError, job: str, timeout: float | None, reasons: Sequence[str]
) -> TimeoutError:
    """Return the error for a wait that took too long, with the caller's own timeout."""
    text = f"job {job} has not finished" + ("" if timeout is None else f" within {timeout:g} s")
    if isinstance(error, _InBacklog):
        return ResultTimeout(f"{text}: the broker is unreachable, so it is still in the backlog")
    if isinstance(error, ResultTimeout):
        return ResultTimeout(". ".join([text, *reasons]))
    if isinstance(error, UmbelError):
        return error
    return ResultTimeout(f"{text}: its store has not answered")


def _is_event_loop() -> bool:
    """Whether the caller runs in an event loop, and not in a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _with_grace(timeout: float | None) -> float | None:
    return None if timeout is None else timeout + _STORE_GRACE_SECONDS
