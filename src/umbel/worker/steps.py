"""The steps of one run, numbered in call order: kept results are returned, other steps are run."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NoReturn, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from umbel.errors import (
    BadMessage,
    ConfigurationError,
    LeaseLost,
    MessageTooLarge,
    NotEncodable,
    StepsChanged,
    Unavailable,
)
from umbel.messages import KeptStep, Step, decode_as
from umbel.publisher import waker
from umbel.tasks import Run, Section, StepCall, StepPosition, current_step, enter_step
from umbel.tasks.parameters import return_type_of
from umbel.tasks.steps import await_if_coroutine, running_loop
from umbel.worker.step_writer import StepWriter

T = TypeVar("T")

_LAST_WRITE_TIMEOUT = 1.0
"""Seconds to wait for the write of a completed step when its run is stopped meanwhile."""
_MAX_NAME_LENGTH = 255
_FINAL = Section("step", None)


class RunSteps:
    """Implements ``tasks.StepRunner``: blocks in threads, returns coroutines in event loops."""

    def __init__(self, writer: StepWriter, run: Run) -> None:
        self._writer = writer
        self._run = run
        self._lock = threading.Lock()
        self._count = 0
        self._names: dict[str, int] = {}
        # Under the first fencing number of a job, no step can have been kept before.
        self._kept: dict[int, Step] | None = {} if run.lease.fence == 1 else None
        self._reading: asyncio.Task[dict[int, Step]] | None = None

    def begin(self, call: StepCall) -> Any:
        """Number the step now, so that concurrent steps are numbered in call order, and run it."""
        position = self._next_position(call)
        if running_loop() is not None:
            return self._run_async(call, position)
        if call.threaded:
            raise ConfigurationError(
                f"step.threaded({call.name}): no event loop runs here; use step({call.name}, …)"
            )
        return self._run_blocking(call, position)

    # --- in a thread -------------------------------------------------------------------------

    def _run_blocking(self, call: StepCall, position: StepPosition) -> Any:
        self._checkpoint()
        kept = self._kept
        known = self._find(position, self._wait_for(self._read_kept()) if kept is None else kept)
        if known is None:
            known = self._execute_blocking(call, position).step
        return self._value(call, known)

    def _execute_blocking(self, call: StepCall, position: StepPosition) -> KeptStep:
        if call.transactional:
            try:
                return self._transact(call, position)
            except LeaseLost:
                self._wait_for(self._writer.lose(self._run.lease))
                self._raise_lost()
        kept = self._call(call, position)
        if not self._wait_for(self._writer.keep(kept, self._run)):
            self._raise_lost()
        return kept

    def _transact(self, call: StepCall, position: StepPosition) -> KeptStep:
        transactions = self._writer.transactions
        if call.connection is None:
            return transactions.run(partial(self._call_with, call, position))
        joined = transactions.join(call.connection)
        kept = self._call_with(call, position, call.connection)
        transactions.keep_within(kept, joined)
        return kept

    def _call_with(self, call: StepCall, position: StepPosition, connection: Any) -> KeptStep:
        position.connection = connection
        return self._call(call, position, connection)

    def _call(self, call: StepCall, position: StepPosition, *lead: Any) -> KeptStep:
        """Call the function in this thread."""
        began = self._writer.clock.now()
        with enter_step(position):
            value = call.function(*lead, *call.args, **call.kwargs)
        if inspect.iscoroutine(value):
            value.close()
            raise ConfigurationError(
                f"step {position.name}: it is async, and a def task cannot await it; give a"
                " def function, or make the task async def"
            )
        return self._record(position, value, began)

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        if self._writer.host.is_closed():  # this thread was abandoned
            work.close()
            self._raise_lost()
        try:
            return self._writer.wait_for(work)
        except Unavailable:
            self._checkpoint()
            raise

    def _checkpoint(self) -> None:
        if self._run.stop_reason is not None:
            raise self._run.stop_reason

    def _raise_lost(self) -> NoReturn:
        self._checkpoint()
        raise LeaseLost(f"job {self._run.job.id} was taken from this worker")

    # --- in an event loop --------------------------------------------------------------------

    async def _run_async(self, call: StepCall, position: StepPosition) -> Any:
        await self._acheckpoint()
        kept = self._kept
        known = self._find(
            position, await self._on_host(self._read_kept()) if kept is None else kept
        )
        if known is None:
            known = (await self._execute_async(call, position)).step
        return self._value(call, known)

    async def _execute_async(self, call: StepCall, position: StepPosition) -> KeptStep:
        if call.transactional:
            try:
                return await self._atransact(call, position)
            except LeaseLost:
                await self._on_host(self._writer.lose(self._run.lease))
                await self._araise_lost()
        kept = await self._acall(call, position)
        if not await self._akeep(kept):
            await self._araise_lost()
        return kept

    async def _atransact(self, call: StepCall, position: StepPosition) -> KeptStep:
        transactions = self._writer.transactions
        if call.connection is not None:
            # The caller's connection belongs to this event loop, so the function runs here.
            joined = await transactions.ajoin(call.connection)
            position.connection = call.connection
            kept = await self._acall_here(call, position, call.connection)
            await transactions.akeep_within(kept, joined)
            return kept
        if not _is_async(call.function):
            return await _in_thread(transactions.run, partial(self._call_with, call, position))
        if self._is_trio:
            raise ConfigurationError(
                f'step.transaction({position.name}): with loop="trio" give a def function; it runs'
                " in a thread"
            )

        async def work(connection: Any) -> KeptStep:
            position.connection = connection
            return await self._acall_here(call, position, connection)

        return await transactions.arun(work)

    async def _acall(self, call: StepCall, position: StepPosition) -> KeptStep:
        if _is_async(call.function):
            return await self._acall_here(call, position)
        began = self._writer.clock.now()
        with enter_step(position):  # the thread's context is a copy of this one
            value = await _in_thread(partial(call.function, *call.args, **call.kwargs))
            return self._record(position, await await_if_coroutine(value), began)

    async def _acall_here(self, call: StepCall, position: StepPosition, *lead: Any) -> KeptStep:
        began = self._writer.clock.now()
        with enter_step(position):
            value = await await_if_coroutine(call.function(*lead, *call.args, **call.kwargs))
        return self._record(position, value, began)

    async def _akeep(self, kept: KeptStep) -> bool:
        if self._is_on_host:
            writing = self._writer.host.create_task(self._writer.keep(kept, self._run))
            try:
                return await asyncio.shield(writing)
            except asyncio.CancelledError:
                # The step is done; if it is kept, it need not run again.
                await asyncio.wait([writing], timeout=_LAST_WRITE_TIMEOUT)
                raise
            except Unavailable:
                await self._acheckpoint()
                raise
        return await self._on_host(self._writer.keep(kept, self._run))

    async def _on_host(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work in the worker's event loop and return its result, from any event loop."""
        if self._is_on_host:
            return await work
        wake, answered = waker(), anyio.Event()
        future = asyncio.run_coroutine_threadsafe(work, self._writer.host)
        future.add_done_callback(lambda _: wake(answered.set))
        await answered.wait()
        return future.result()

    async def _acheckpoint(self) -> None:
        if self._run.stop_reason is None:
            return
        await anyio.lowlevel.checkpoint()  # raises a cancellation that is pending
        if self._is_trio:
            raise self._run.stop_reason
        raise asyncio.CancelledError

    async def _araise_lost(self) -> NoReturn:
        await self._acheckpoint()
        raise LeaseLost(f"job {self._run.job.id} was taken from this worker")

    @property
    def _is_trio(self) -> bool:
        task = self._run.task
        return task is not None and task.declared.loop == "trio"

    @property
    def _is_on_host(self) -> bool:
        return not self._is_trio and running_loop() is self._writer.host

    # --- numbers, names, results -------------------------------------------------------------

    def _next_position(self, call: StepCall) -> StepPosition:
        outer = current_step.get()
        if outer is not None and outer.job == self._run.job.id:
            raise ConfigurationError(
                f"step {call.name}: called inside step {outer.name}, which is kept as a whole; call"
                " its function directly there, or make two steps one after the other"
            )
        with self._lock:
            self._count += 1
            times = self._names[call.name] = self._names.get(call.name, 0) + 1
            more = "" if times == 1 else f"#{times}"
            name = call.name[: _MAX_NAME_LENGTH - len(more)] + more
            return StepPosition(self._run.job.id, self._count, name)

    async def _read_kept(self) -> dict[int, Step]:
        """Return all kept steps; read them once per run. Called in the worker's event loop."""
        if self._kept is None:
            if self._reading is None or self._reading.done():
                self._reading = self._writer.host.create_task(self._writer.read(self._run))
            # Concurrent steps share the read: the cancellation of one must not cancel it.
            self._kept = await asyncio.shield(self._reading)
        return self._kept

    def _find(self, position: StepPosition, kept: dict[int, Step]) -> Step | None:
        """Return the step kept under this number. Raise StepsChanged if it has another name."""
        if self._run.fatal is not None:
            raise self._run.fatal
        known = kept.get(position.number)
        if known is not None and known.name != position.name:
            self._fail_changed(
                f"step {position.number} of job {position.job} was kept as {known.name!r}, and the"
                f" task now calls {position.name!r} there"
            )
        return known

    def _fail_changed(self, what: str) -> NoReturn:
        job = self._run.job.id
        error = StepsChanged(
            f"{what}; restore the order in which the task calls its steps and retry the job, or"
            f" start it over: umbel jobs retry {job} --from-scratch"
        )
        self._run.fatal = error
        raise error

    def _record(self, position: StepPosition, value: Any, began: float) -> KeptStep:
        what = f"result of step {position.name}"
        try:
            body = self._writer.codec.encode(value, what=what, name="result")
        except (NotEncodable, MessageTooLarge) as error:
            named = error if what in str(error) else type(error)(f"{what}: {error}")
            self._run.mark(named, _FINAL)  # another run would return the same
            raise named from None
        step = Step(
            number=position.number,
            name=position.name,
            result=body,
            started=began,
            finished=self._writer.clock.now(),
        )
        return KeptStep(self._run.lease, step)

    def _value(self, call: StepCall, known: Step) -> Any:
        """Return the decoded result, in the first run, too: so all runs get the same value."""
        value = self._writer.codec.decode(known.result)
        returns = return_type_of(call.function)
        if returns is Any or returns is None or type(value) is returns:
            return value
        try:
            return decode_as(value, returns, "result")
        except BadMessage as error:
            self._fail_changed(
                f"step {known.number} of job {self._run.job.id}, {known.name!r}, was kept with a"
                f" {error}, which its function no longer returns"
            )


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "function", None)  # an ``async def`` task, called directly
    )


async def _in_thread(function: Callable[..., T], *args: Any) -> T:
    context = contextvars.copy_context()
    return await anyio.to_thread.run_sync(partial(context.run, function, *args))
