"""The heartbeat: a separate thread that keeps the worker's leases alive, whatever its tasks do.

It beats at a third of the lease, finds out which leases were lost and which jobs were cancelled,
and runs the upkeep duties. If no beat has reached the store for most of a lease, it makes the
worker stop its runs before another worker can have taken the jobs: a lease lapses only after a
whole lease length without a beat.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from umbel.backends import CANCELLATIONS, PAUSES, Demand, WorkerEntry
from umbel.clock import Clock
from umbel.control import Pauses, PauseState
from umbel.errors import Unavailable
from umbel.messages import Lease
from umbel.services import run_periodically
from umbel.telemetry import Telemetry, events
from umbel.worker.incarnation import Incarnation
from umbel.worker.intake import Intake
from umbel.worker.loop_watch import LoopWatch

_CONFIRM_INTERVAL = 0.02
"""Seconds between beats while an operator waits for this worker to confirm a pause."""
_WATCH_LEASES = 3.0
"""Leases after which a watch of control that saw no change begins again."""
_NEVER = 1e9

FENCE_AT = 0.75
"""The share of a lease after which a worker without a successful beat stops its runs."""


class LeaseHolder(Protocol):
    """The worker, as its heartbeat sees it. All methods are called from the heartbeat's thread."""

    def entry(self) -> WorkerEntry:
        """Return the registry entry of the present incarnation."""

    def lost_all_leases(self, incarnation: str) -> None:
        """Stop all runs of this incarnation; it has ended."""

    def lost_leases(self, leases: list[Lease]) -> None:
        """Stop the runs under these leases."""

    def cancel(self, cancelled: dict[Lease, str]) -> None:
        """Stop these runs, each for the reason given."""

    def control(self, state: PauseState) -> None:
        """Respect these pauses from now on."""

    def confirmed_pause_epoch(self) -> int:
        """Return the control epoch that all fetches respect."""

    def kinds(self) -> dict[str, str]:
        """Return the kind of each task."""

    def free(self) -> Demand:
        """Return what could start now."""

    def fetched(self) -> int:
        """Return how many deliveries were fetched so far."""

    def restart_fetch(self) -> None:
        """Cancel the present fetch and begin a new one."""

    def exit_stalled(self, reason: str) -> None:
        """End the process, so that its supervisor starts a new one."""

    def stopping(self) -> bool:
        """Return whether the worker is stopping."""

    def running_coroutines(self) -> list[tuple[str, str]]:
        """Return the task and the job of the coroutine that runs now; if unknown, of all."""


class Heartbeat:
    """Runs in a thread with its own event loop and its own connections."""

    def __init__(
        self,
        incarnation: Incarnation,
        worker: LeaseHolder,
        *,
        lease: float,
        stall: float,
        open_intake: Callable[[], Intake],
        open_upkeep: Callable[[float], list[Callable[[], Awaitable[object]]]],
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._incarnation = incarnation
        self._worker = worker
        self._lease = lease
        self._stall = stall
        self._open_intake = open_intake
        self._open_upkeep = open_upkeep
        self._clock = clock
        self._telemetry = telemetry
        self._stop_requested = threading.Event()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_watch: LoopWatch | None = None
        self._thread = threading.Thread(target=self._serve, name="umbel-heartbeat", daemon=True)
        self._is_unreachable = False
        self._last_success: float | None = None
        self._is_lost = False
        """Whether the last beat that reached the store found that the incarnation has ended."""
        self._fence_from = 0.0
        """The moment from which the time without a beat is counted."""
        self._registered = self._registering = incarnation.id
        self._beats = 0
        self._control_changed = True
        self._seen = {PAUSES: 0, CANCELLATIONS: 0}
        """The revisions of what it watches, as of the last time that it was read."""
        self._watch: asyncio.Task[dict[str, int]] | None = None
        """Waits for a change of control, from one beat to the next."""
        self._reported_epoch = 0
        self._wall_offset = clock.now() - clock.monotonic()
        self._wall_changed = float("-inf")
        self._waiting_since: float | None = None
        self._fetched = -1
        self._has_restarted_fetch = False

    def start(self) -> None:
        """Start beating. The worker is registered already."""
        self._loop_watch = LoopWatch(self._worker.running_coroutines, self._clock, self._telemetry)
        self._start_thread()

    async def stop(self) -> None:
        """Stop beating; return when the thread has ended."""
        self._stop_requested.set()
        if self._loop is not None and self._stop is not None:
            with suppress(RuntimeError):  # its loop has ended already
                self._loop.call_soon_threadsafe(self._stop.set)
        await self._wait_for_thread()

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    @property
    def heartbeat_age(self) -> float | None:
        """Seconds since the last beat that reached the store; None before the first."""
        return None if self._last_success is None else self._clock.monotonic() - self._last_success

    def _start_thread(self) -> None:
        self._thread.start()

    async def _wait_for_thread(self) -> None:
        await asyncio.to_thread(self._thread.join, 10)

    def _serve(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._stop, self._loop = asyncio.Event(), asyncio.get_running_loop()
        if self._stop_requested.is_set():
            return
        intake = self._open_intake()
        every = self._lease / 3
        duties = run_periodically(self._open_upkeep(every), every, self._telemetry)
        others = [asyncio.create_task(duties, name="umbel upkeep")]
        if self._loop_watch is not None:
            others.append(asyncio.create_task(self._loop_watch.run(), name="umbel loop watch"))
        try:
            await self._beat_until_stopped(intake)
        finally:
            tasks = others if self._watch is None else [*others, self._watch]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await intake.close()

    async def _beat_until_stopped(self, intake: Intake) -> None:
        assert self._stop is not None
        self._fence_from = self._clock.monotonic()
        while not self._stop.is_set():
            began = self._clock.monotonic()
            beaten = await self._try_beat(intake)
            if beaten:
                self._fence_from = self._last_success = began
            elif self._time_left() <= 0:
                self._fence()
            await self._rest(intake, began if beaten and not self._is_lost else None)

    def _time_left(self) -> float:
        """Return the seconds until the worker must stop its runs, unless a beat succeeds."""
        return self._fence_from + self._lease * FENCE_AT - self._clock.monotonic()

    def _fence(self) -> None:
        # The next incarnation counts from here, before it asks to be registered: it may be
        # registered, and hold jobs, although the answer never arrived.
        self._fence_from = self._clock.monotonic()
        if self._registering == self._incarnation.id:
            self._worker.lost_all_leases(self._incarnation.id)

    async def _try_beat(self, intake: Intake) -> bool:
        try:
            async with asyncio.timeout(max(self._time_left(), self._lease / 10)):
                await self._beat(intake)
        except (Unavailable, TimeoutError) as error:
            if not self._is_unreachable:
                self._is_unreachable = True
                text = str(error) or "no answer"
                self._telemetry.emit(events.Unreachable(service="heartbeat", error=text))
            return False
        except Exception as error:  # noqa: BLE001 - the heartbeat's outermost loop must go on
            self._emit_failed(error)
            return False
        if self._is_unreachable:
            self._is_unreachable = False
            self._telemetry.emit(events.Reachable(service="heartbeat"))
        return True

    def _emit_failed(self, error: Exception) -> None:
        self._telemetry.emit(
            events.ServiceFailed(service="heartbeat", error=repr(error), delay=self._lease / 10)
        )

    async def _beat(self, intake: Intake) -> None:
        incarnation = self._incarnation.id
        if incarnation != self._registered:
            self._registering = incarnation
            entry = self._worker.entry()
            self._incarnation.index = await intake.register(entry)
            self._registered = incarnation
            self._incarnation.forget_former(entry.former)
        self._reported_epoch = self._worker.confirmed_pause_epoch()
        alive = await intake.roles.registry.heartbeat(
            incarnation,
            running=len(self._incarnation),
            epoch=self._reported_epoch,
            stopping=self._worker.stopping(),
        )
        self._is_lost = not alive
        if self._is_lost:
            self._worker.lost_all_leases(incarnation)
            return
        self._beats += 1
        is_full_beat = self._beats % 3 == 1
        # Read only now: the beat may have taken long, and jobs may have arrived meanwhile.
        held = self._held_by(incarnation)
        if held or is_full_beat:
            await self._extend(intake, incarnation, held)
        if self._control_changed:
            state = await Pauses(intake.roles.coordination).state()
            self._seen[PAUSES], self._control_changed = state.epoch, False
            self._worker.control(state)
        # Read after the revisions: a later cancellation counts as a change since then.
        if held := self._held_by(incarnation):
            cancelled = await intake.roles.control.cancellations([lease.job for lease in held])
            self._worker.cancel({e: cancelled[e.job] for e in held if e.job in cancelled})
        if is_full_beat:
            await intake.assign_kinds(self._worker.kinds())
            await self._watch_for_stall(intake)

    def _held_by(self, incarnation: str) -> list[Lease]:
        return [lease for lease in self._incarnation.held() if lease.owner == incarnation]

    async def _extend(self, intake: Intake, incarnation: str, held: list[Lease]) -> None:
        lost = await intake.extend(incarnation, held, self._unseen_after())
        # A lease that was settled meanwhile is not lost.
        still_held = set(self._incarnation.held())
        gone = [lease for lease in lost if lease in still_held]
        if gone:
            self._worker.lost_leases(gone)

    def _unseen_after(self) -> float:
        """Return the age from which a claim that is not held counts as never received.

        Claims are stamped with wall time. If the wall clock was changed, claims may look older than
        they are, so for one lease nothing is given back. After that, a claim that has not arrived
        never will.
        """
        self.check_wall_clock()
        return self._lease if self._clock.monotonic() - self._wall_changed > self._lease else _NEVER

    def check_wall_clock(self) -> None:
        """Find out whether the wall clock was changed. Called before each fetch, too: a clock that
        was changed and changed back between two beats may have stamped a claim meanwhile."""
        now = self._clock.monotonic()
        offset = self._clock.now() - now
        if abs(offset - self._wall_offset) > self._lease / 20:
            self._wall_offset, self._wall_changed = offset, now

    async def _rest(self, intake: Intake, beaten: float | None) -> None:
        """Wait until the next beat is due, control changes, or the heartbeat is stopped.

        ``beaten`` is when the last beat began, if it succeeded and the incarnation goes on.
        """
        assert self._stop is not None
        if beaten is None:
            wait = min(self._lease / 10, max(self._time_left(), self._lease / 100))
            await _first_of(self._stop.wait(), asyncio.sleep(wait))
            return
        if (
            self._reported_epoch < self._seen[PAUSES]
        ):  # an operator waits for the confirmation of a pause
            await _first_of(self._stop.wait(), asyncio.sleep(_CONFIRM_INTERVAL))
            return
        # Counted from the start of the last beat, however long that took. The local clock decides,
        # not the server, whose answer may not arrive.
        due = beaten + self._lease / 3 - self._clock.monotonic()
        try:
            await self._wait_for_control(intake, max(due, 0))
        except (Unavailable, TimeoutError):
            await asyncio.sleep(min(self._lease / 10, max(due, 0)))
        except Exception as error:  # noqa: BLE001 - the heartbeat's outermost loop must go on
            self._emit_failed(error)
            await asyncio.sleep(self._lease / 10)

    async def _wait_for_control(self, intake: Intake, wait: float) -> None:
        """Wait until control changes, the heartbeat is stopped, or ``wait`` seconds have passed."""
        assert self._stop is not None
        if self._watch is None:
            self._watch = asyncio.create_task(self._watch_control(intake), name="umbel watch")
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([stop, self._watch], timeout=wait, return_when="FIRST_COMPLETED")
        finally:
            stop.cancel()
        if self._watch.done():
            watch, self._watch = self._watch, None
            changes = watch.result()
            self._seen |= changes
            self._control_changed = self._control_changed or bool(changes)

    async def _watch_control(self, intake: Intake) -> dict[str, int]:
        wait = _WATCH_LEASES * self._lease
        async with asyncio.timeout(wait + self._lease):  # a dead server must not end the watch
            return await intake.roles.coordination.changed(self._seen, wait)

    async def _watch_for_stall(self, intake: Intake) -> None:
        """Restart the fetch, then end the process, if jobs wait and slots are free for too long."""
        free, fetched = self._worker.free(), self._worker.fetched()
        kinds = [kind for kind, many in free.free.items() if many > 0]
        now = self._clock.monotonic()
        has_fetched = fetched != self._fetched
        self._fetched = fetched
        if has_fetched:
            self._has_restarted_fetch = False
        is_idle = not has_fetched and kinds and not self._worker.stopping()
        if not (is_idle and await intake.has_waiting_jobs(kinds, free.without)):
            self._waiting_since = None
            return
        if self._waiting_since is None:
            self._waiting_since = now
        elif now - self._waiting_since > self._stall and not self._is_loop_blocked():
            self._waiting_since = None
            action = "ends itself" if self._has_restarted_fetch else "rebuilds its connection"
            self._telemetry.emit(events.WorkerStalled(worker=self._incarnation.name, action=action))
            if self._has_restarted_fetch:
                self._worker.exit_stalled("stalled twice")
            self._has_restarted_fetch = True
            self._worker.restart_fetch()

    def _is_loop_blocked(self) -> bool:
        return self._loop_watch is not None and self._loop_watch.is_blocked


async def _first_of(*waits: Awaitable[object]) -> None:
    """Wait until one of them is done, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
