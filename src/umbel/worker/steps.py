"""The steps of one run: numbered as they are called, found if they were kept, done if not."""

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
from umbel.messages import Kept, Step, decode_as
from umbel.publisher import waker
from umbel.tasks import Run, Section, StepCall, StepPlace, entered, inside
from umbel.tasks.parameters import returned_by
from umbel.tasks.steps import awaited, in_event_loop
from umbel.worker.stepbook import StepBook

T = TypeVar("T")

_LAST_WRITE = 1.0
"""Seconds that a step which is done gets to be kept when its run is stopped at this moment."""
_LONGEST_NAME = 255
_FINAL = Section("step", None)


class RunSteps:
    """Implements ``tasks.StepKeeper``: for threads by blocking, in event loops by awaiting."""

    def __init__(self, book: StepBook, run: Run) -> None:
        self._book = book
        self._run = run
        self._lock = threading.Lock()
        self._count = 0
        self._names: dict[str, int] = {}
        # The first claim of a job has the number one: nothing can have been kept before.
        self._kept: dict[int, Step] | None = {} if run.lease.fence == 1 else None
        self._reading: asyncio.Task[dict[int, Step]] | None = None

    def begin(self, call: StepCall) -> Any:
        """Give it its place, now: so steps that run at the same time have theirs by call order."""
        place = self._next(call)
        if in_event_loop():
            return self._awaited(call, place)
        if call.threaded:
            raise ConfigurationError(
                f"step.threaded({call.name}): no event loop runs here; use step({call.name}, …)"
            )
        return self._blocking(call, place)

    # --- in a thread -------------------------------------------------------------------------

    def _blocking(self, call: StepCall, place: StepPlace) -> Any:
        self._checkpoint()
        kept = self._kept
        known = self._find(place, self._wait(self._all_kept()) if kept is None else kept)
        if known is None:
            known = self._do_blocking(call, place).step
        return self._value(call, known)

    def _do_blocking(self, call: StepCall, place: StepPlace) -> Kept:
        if call.transactional:
            try:
                return self._transact(call, place)
            except LeaseLost:
                self._wait(self._book.lose(self._run.lease))
                self._lost()
        kept = self._done(call, place)
        if not self._wait(self._book.keep(kept, self._run)):
            self._lost()
        return kept

    def _transact(self, call: StepCall, place: StepPlace) -> Kept:
        transactions = self._book.transactions
        if call.connection is None:
            return transactions.run(partial(self._done_on, call, place))
        joined = transactions.join(call.connection)
        kept = self._done_on(call, place, call.connection)
        transactions.keep_within(kept, joined)
        return kept

    def _done_on(self, call: StepCall, place: StepPlace, connection: Any) -> Kept:
        place.connection = connection
        return self._done(call, place, connection)

    def _done(self, call: StepCall, place: StepPlace, *lead: Any) -> Kept:
        """Call the function, here."""
        began = self._book.clock.now()
        with entered(place):
            value = call.function(*lead, *call.args, **call.kwargs)
        if inspect.iscoroutine(value):
            value.close()
            raise ConfigurationError(
                f"step {place.name}: it is async, and here nobody can await it; give a def"
                " function, or an async def one in an async def task"
            )
        return self._record(place, value, began)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._book.host.is_closed():  # this thread was left behind
            work.close()
            self._lost()
        try:
            return self._book.wait_for(work)
        except Unavailable:
            self._checkpoint()
            raise

    def _checkpoint(self) -> None:
        if self._run.stop_reason is not None:
            raise self._run.stop_reason

    def _lost(self) -> NoReturn:
        self._checkpoint()
        raise LeaseLost(f"job {self._run.job.id} was taken from this worker")

    # --- in an event loop --------------------------------------------------------------------

    async def _awaited(self, call: StepCall, place: StepPlace) -> Any:
        await self._acheckpoint()
        kept = self._kept
        known = self._find(place, await self._on_host(self._all_kept()) if kept is None else kept)
        if known is None:
            known = (await self._do(call, place)).step
        return self._value(call, known)

    async def _do(self, call: StepCall, place: StepPlace) -> Kept:
        if call.transactional:
            try:
                return await self._atransact(call, place)
            except LeaseLost:
                await self._on_host(self._book.lose(self._run.lease))
                await self._alost()
        kept = await self._adone(call, place)
        if not await self._akeep(kept):
            await self._alost()
        return kept

    async def _atransact(self, call: StepCall, place: StepPlace) -> Kept:
        transactions = self._book.transactions
        if call.connection is not None:
            # The connection is the caller's and lives here, so the function runs here.
            joined = await transactions.ajoin(call.connection)
            place.connection = call.connection
            kept = await self._adone_here(call, place, call.connection)
            await transactions.akeep_within(kept, joined)
            return kept
        if not _is_async(call.function):
            return await _in_thread(transactions.run, partial(self._done_on, call, place))
        if self._is_trio:
            raise ConfigurationError(
                f'step.transaction({place.name}): with loop="trio" give a def function; it runs in'
                " a thread"
            )

        async def work(connection: Any) -> Kept:
            place.connection = connection
            return await self._adone_here(call, place, connection)

        return await transactions.arun(work)

    async def _adone(self, call: StepCall, place: StepPlace) -> Kept:
        if _is_async(call.function):
            return await self._adone_here(call, place)
        began = self._book.clock.now()
        with entered(place):  # the thread's context is a copy of this one
            value = await _in_thread(partial(call.function, *call.args, **call.kwargs))
            return self._record(place, await awaited(value), began)

    async def _adone_here(self, call: StepCall, place: StepPlace, *lead: Any) -> Kept:
        began = self._book.clock.now()
        with entered(place):
            value = await awaited(call.function(*lead, *call.args, **call.kwargs))
        return self._record(place, value, began)

    async def _akeep(self, kept: Kept) -> bool:
        if self._is_at_home:
            writing = self._book.host.create_task(self._book.keep(kept, self._run))
            try:
                return await asyncio.shield(writing)
            except asyncio.CancelledError:
                # The step is done, so keeping it spares doing it again.
                await asyncio.wait([writing], timeout=_LAST_WRITE)
                raise
            except Unavailable:
                await self._acheckpoint()
                raise
        return await self._on_host(self._book.keep(kept, self._run))

    async def _on_host(self, work: Coroutine[Any, Any, T]) -> T:
        """What comes of work on the worker's loop, whichever loop this is."""
        if self._is_at_home:
            return await work
        wake, answered = waker(), anyio.Event()
        future = asyncio.run_coroutine_threadsafe(work, self._book.host)
        future.add_done_callback(lambda _: wake(answered.set))
        await answered.wait()
        return future.result()

    async def _acheckpoint(self) -> None:
        if self._run.stop_reason is None:
            return
        await anyio.lowlevel.checkpoint()  # the cancellation, if it is still on its way
        if self._is_trio:
            raise self._run.stop_reason
        raise asyncio.CancelledError

    async def _alost(self) -> NoReturn:
        await self._acheckpoint()
        raise LeaseLost(f"job {self._run.job.id} was taken from this worker")

    @property
    def _is_trio(self) -> bool:
        task = self._run.task
        return task is not None and task.declared.loop == "trio"

    @property
    def _is_at_home(self) -> bool:
        return not self._is_trio and asyncio._get_running_loop() is self._book.host

    # --- numbers, names, results -------------------------------------------------------------

    def _next(self, call: StepCall) -> StepPlace:
        outer = inside.get()
        if outer is not None and outer.job == self._run.job.id:
            raise ConfigurationError(
                f"step {call.name}: called inside step {outer.name}, which is kept as a whole; call"
                " its function directly there, or make two steps one after the other"
            )
        with self._lock:
            self._count += 1
            times = self._names[call.name] = self._names.get(call.name, 0) + 1
            more = "" if times == 1 else f"#{times}"
            name = call.name[: _LONGEST_NAME - len(more)] + more
            return StepPlace(self._run.job.id, self._count, name)

    async def _all_kept(self) -> dict[int, Step]:
        """Everything in one round trip, once a run. On the worker's loop."""
        if self._kept is None:
            if self._reading is None or self._reading.done():
                self._reading = self._book.host.create_task(self._book.read(self._run))
            # Shared by all steps that were called at once: one that is cancelled stops no other.
            self._kept = await asyncio.shield(self._reading)
        return self._kept

    def _find(self, place: StepPlace, kept: dict[int, Step]) -> Step | None:
        """What was kept in this place. Raises StepsChanged: it is something else."""
        if self._run.fatal is not None:
            raise self._run.fatal
        known = kept.get(place.number)
        if known is not None and known.name != place.name:
            self._changed(
                f"step {place.number} of job {place.job} was kept as {known.name!r}, and the task"
                f" now calls {place.name!r} in its place"
            )
        return known

    def _changed(self, what: str) -> NoReturn:
        job = self._run.job.id
        error = StepsChanged(
            f"{what}; restore the order in which the task calls its steps and retry the job, or"
            f" let it begin anew: umbel jobs retry {job} --from-scratch"
        )
        self._run.fatal = error
        raise error

    def _record(self, place: StepPlace, value: Any, began: float) -> Kept:
        what = f"result of step {place.name}"
        try:
            body = self._book.codec.encode(value, what=what, name="result")
        except (NotEncodable, MessageTooLarge) as error:
            named = error if what in str(error) else type(error)(f"{what}: {error}")
            self._run.mark(named, _FINAL)  # the function would return it again
            raise named from None
        step = Step(
            number=place.number,
            name=place.name,
            result=body,
            started=began,
            finished=self._book.clock.now(),
        )
        return Kept(self._run.lease, step)

    def _value(self, call: StepCall, known: Step) -> Any:
        """What was kept, also to whoever did it: so the first run sees what all others see."""
        value = self._book.codec.decode(known.result)
        returns = returned_by(call.function)
        if returns is Any or returns is None or type(value) is returns:
            return value
        try:
            return decode_as(value, returns, "result")
        except BadMessage as error:
            self._changed(
                f"step {known.number} of job {self._run.job.id}, {known.name!r}, was kept with a"
                f" {error}, which its function no longer returns"
            )


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "function", None)  # an async def task of ours, called here
    )


async def _in_thread(function: Callable[..., T], *args: Any) -> T:
    context = contextvars.copy_context()
    return await anyio.to_thread.run_sync(partial(context.run, function, *args))
