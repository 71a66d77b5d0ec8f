"""The heart: a thread of its own that keeps the worker's leases alive, whatever its tasks do.

It beats at a third of the lease, learns what was lost or cancelled, and looks after the others.
When no beat got through for most of a lease it tells the worker to stop what runs, before
anybody else can have taken it: a lease lapses only after a whole length without a beat.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from umbel.backends import ControlState, Demand, WorkerEntry
from umbel.clock import Clock
from umbel.errors import Unavailable
from umbel.messages import Lease
from umbel.services import look_after
from umbel.telemetry import Telemetry, events
from umbel.worker.incarnation import Life
from umbel.worker.intake import Intake

_CONFIRM_STEP = 0.02
_NEVER = 1e9

FENCE_AT = 0.75
"""The share of a lease after which a holder without a beat stops itself."""


class Body(Protocol):
    """What the heart tells the worker, and asks it. Called from the heart's thread."""

    def entry(self) -> WorkerEntry:
        """What the worker says of itself in its present life."""

    def lost_everything(self, incarnation: str) -> None:
        """This life is over."""

    def lost_some(self, jobs: list[Lease]) -> None:
        """These are no longer ours."""

    def cancel(self, wanted: dict[Lease, str]) -> None:
        """Somebody wants these stopped."""

    def control(self, state: ControlState) -> None:
        """What is paused now."""

    def confirmed_epoch(self) -> int:
        """The control epoch after which nothing paused is fetched."""

    def kinds(self) -> dict[str, str]:
        """Each known task's kind."""

    def free(self) -> Demand:
        """What could start now."""

    def fetched(self) -> int:
        """How many deliveries were fetched so far."""

    def rebuild(self) -> None:
        """Throw the connection away and fetch anew."""

    def die(self, why: str) -> None:
        """Nothing helped: end the process, so that a supervisor starts a fresh one."""

    def stopping(self) -> bool:
        """Whether the worker is stopping."""


class Heartbeat:
    """Runs in a thread with its own event loop and its own connections."""

    def __init__(
        self,
        life: Life,
        body: Body,
        *,
        lease: float,
        stall: float,
        open_intake: Callable[[], Intake],
        open_upkeep: Callable[[float], list[Callable[[], Awaitable[object]]]],
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._life = life
        self._body = body
        self._lease = lease
        self._stall = stall
        self._open_intake = open_intake
        self._open_upkeep = open_upkeep
        self._clock = clock
        self._telemetry = telemetry
        self._stop_asked = threading.Event()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._host: asyncio.AbstractEventLoop | None = None
        self._host_thread = 0
        self._thread = threading.Thread(target=self._serve, name="umbel-heart", daemon=True)
        self._trouble = False
        self._beaten: float | None = None
        self._over = False
        """Whether the last beat that got through was one of a life that had ended."""
        self._last = 0.0
        self._enlisted = self._asked_for = life.incarnation
        self._beats = 0
        self._control_changed = True
        self._epoch = 0
        self._told_epoch = 0
        self._echo = 0.0
        self._wall_ahead = clock.now() - clock.monotonic()
        self._wall_set = float("-inf")
        self._waiting_since: float | None = None
        self._fetched = -1
        self._rebuilt = False

    def start(self) -> None:
        """Start beating. The worker is enlisted already."""
        self._host = asyncio.get_running_loop()
        self._host_thread = threading.get_ident()
        self._echo = self._clock.monotonic()
        self._begin()

    async def stop(self) -> None:
        """Stop beating; returns when the thread has ended."""
        self._stop_asked.set()
        if self._loop is not None and self._stop is not None:
            with suppress(RuntimeError):  # its loop has ended already
                self._loop.call_soon_threadsafe(self._stop.set)
        await self._ended()

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    @property
    def beat_age(self) -> float | None:
        """Seconds since the last beat that got through; None before the first."""
        return None if self._beaten is None else self._clock.monotonic() - self._beaten

    def _begin(self) -> None:
        self._thread.start()

    async def _ended(self) -> None:
        await asyncio.to_thread(self._thread.join, 10)

    def _serve(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._stop, self._loop = asyncio.Event(), asyncio.get_running_loop()
        if self._stop_asked.is_set():
            return
        intake = self._open_intake()
        every = self._lease / 3
        duties = look_after(self._open_upkeep(every), every, self._telemetry)
        upkeep = asyncio.create_task(duties, name="umbel upkeep")
        try:
            await self._beat_on(intake)
        finally:
            upkeep.cancel()
            await asyncio.wait([upkeep])
            await intake.close()

    async def _beat_on(self, intake: Intake) -> None:
        assert self._stop is not None
        self._last = self._clock.monotonic()
        while not self._stop.is_set():
            began = self._clock.monotonic()
            beaten = await self._try_to_beat(intake)
            if beaten:
                self._last = self._beaten = began
            elif self._left() <= 0:
                self._fence()
            self._watch_the_loop()
            await self._rest(intake, began if beaten and not self._over else None)

    def _left(self) -> float:
        """Seconds until the worker has to stop what it runs, unless a beat gets through."""
        return self._last + self._lease * FENCE_AT - self._clock.monotonic()

    def _fence(self) -> None:
        # The next life counts anew from here, which is before it asks to be enlisted: it may be
        # enlisted, and hold jobs, although the answer to that never came.
        self._last = self._clock.monotonic()
        if self._asked_for == self._life.incarnation:
            self._body.lost_everything(self._life.incarnation)

    async def _try_to_beat(self, intake: Intake) -> bool:
        try:
            async with asyncio.timeout(max(self._left(), self._lease / 10)):
                await self._beat(intake)
        except (Unavailable, TimeoutError) as error:
            if not self._trouble:
                self._trouble = True
                text = str(error) or "no answer"
                self._telemetry.emit(events.Unreachable(service="heartbeat", error=text))
            return False
        except Exception as error:  # noqa: BLE001 - the heart's outermost loop: it must go on
            self._failed(error)
            return False
        if self._trouble:
            self._trouble = False
            self._telemetry.emit(events.Reachable(service="heartbeat"))
        return True

    def _failed(self, error: Exception) -> None:
        self._telemetry.emit(
            events.ServiceFailed(service="heartbeat", error=repr(error), delay=self._lease / 10)
        )

    async def _beat(self, intake: Intake) -> None:
        incarnation = self._life.incarnation
        if incarnation != self._enlisted:
            self._asked_for = incarnation
            entry = self._body.entry()
            self._life.index = await intake.enlist(entry)
            self._enlisted = incarnation
            self._life.reported(entry.former)
        self._told_epoch = self._body.confirmed_epoch()
        alive = await intake.beat(
            incarnation,
            running=len(self._life),
            epoch=self._told_epoch,
            stopping=self._body.stopping(),
        )
        self._over = not alive
        if self._over:
            self._body.lost_everything(incarnation)
            return
        self._beats += 1
        thorough = self._beats % 3 == 1
        # Asked for only now: the beat may have taken long, and jobs have come meanwhile.
        held = self._held_by(incarnation)
        if held or thorough:
            await self._extend(intake, incarnation, held)
        if self._control_changed or thorough:
            state = await intake.control()
            self._epoch, self._control_changed = state.epoch, False
            self._body.control(state)
        # After the epoch was read: what is cancelled later is a change since then.
        if held := self._held_by(incarnation):
            wanted = await intake.cancellations([lease.job for lease in held])
            self._body.cancel({e: wanted[e.job] for e in held if e.job in wanted})
        if thorough:
            await intake.sort(self._body.kinds())
            await self._watch_for_stall(intake)

    def _held_by(self, incarnation: str) -> list[Lease]:
        return [lease for lease in self._life.held() if lease.owner == incarnation]

    async def _extend(self, intake: Intake, incarnation: str, held: list[Lease]) -> None:
        lost = await intake.extend(incarnation, held, self._unseen_after())
        # What was settled while we asked is gone for a good reason.
        still_held = set(self._life.held())
        gone = [lease for lease in lost if lease in still_held]
        if gone:
            self._body.lost_some(gone)

    def _unseen_after(self) -> float:
        """Seconds after which a claim that is not held was never received.

        Claims are stamped with wall time. One that was set makes them look older than they are, so
        for a lease nothing is given back: after that, what has not arrived never will.
        """
        self.look_at_the_wall()
        return self._lease if self._clock.monotonic() - self._wall_set > self._lease else _NEVER

    def look_at_the_wall(self) -> None:
        """See whether somebody has set the clock. Who fetches looks, too: set back and forth
        again between two beats, it would have stamped a claim and be right once more."""
        now = self._clock.monotonic()
        ahead = self._clock.now() - now
        if abs(ahead - self._wall_ahead) > self._lease / 20:
            self._wall_ahead, self._wall_set = ahead, now

    async def _rest(self, intake: Intake, beaten: float | None) -> None:
        """Until the next beat is due, control changes, or the heart is stopped.

        Beaten: when the last one began, if that was heard and its life goes on.
        """
        assert self._stop is not None
        if beaten is None:
            wait = min(self._lease / 10, max(self._left(), self._lease / 100))
            await _first_of(self._stop.wait(), asyncio.sleep(wait))
            return
        if self._told_epoch < self._epoch:  # somebody waits for our word that a pause holds
            await _first_of(self._stop.wait(), asyncio.sleep(_CONFIRM_STEP))
            return
        # Counted from before the last beat, however long that took; and the clock decides, not
        # the server, whose answer may not come.
        due = beaten + self._lease / 3 - self._clock.monotonic()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(due):
                    await _first_of(self._stop.wait(), self._wait_for_control(intake, due))
        except Unavailable:
            await asyncio.sleep(min(self._lease / 10, max(due, 0)))
        except Exception as error:  # noqa: BLE001 - the heart's outermost loop: it must go on
            self._failed(error)
            await asyncio.sleep(self._lease / 10)

    async def _wait_for_control(self, intake: Intake, wait: float) -> None:
        if await intake.control_changed(self._epoch, max(wait, 0)):
            self._control_changed = True

    async def _watch_for_stall(self, intake: Intake) -> None:
        """Work waiting, slots free, nothing fetched: that must not last."""
        free, fetched = self._body.free(), self._body.fetched()
        kinds = [kind for kind, room in (("io", free.io), ("cpu", free.cpu)) if room]
        now = self._clock.monotonic()
        moving = fetched != self._fetched
        self._fetched = fetched
        if moving:
            self._rebuilt = False
        idle = not moving and kinds and not self._body.stopping()
        if not (idle and await intake.waiting(kinds, free.without)):
            self._waiting_since = None
            return
        if self._waiting_since is None:
            self._waiting_since = now
        elif now - self._waiting_since > self._stall and self._loop_answers(now):
            self._waiting_since = None
            action = "ends itself" if self._rebuilt else "rebuilds its connection"
            self._telemetry.emit(events.Stalled(worker=self._life.name, action=action))
            if self._rebuilt:
                self._body.die("stalled twice")
            self._rebuilt = True
            self._body.rebuild()

    def _loop_answers(self, now: float) -> bool:
        return now - self._echo < self._lease

    def _watch_the_loop(self) -> None:
        """Ask the worker's loop for a sign of life; tell when it gives none for a whole lease."""
        assert self._host is not None
        silent = self._clock.monotonic() - self._echo
        if silent > self._lease:
            frame = sys._current_frames().get(self._host_thread)
            stack = "".join(traceback.format_stack(frame, 12)) if frame else ""
            self._telemetry.emit(events.LoopBlocked(seconds=round(silent, 1), stack=stack))
        if not self._host.is_closed():
            self._host.call_soon_threadsafe(self._hear_echo)

    def _hear_echo(self) -> None:
        self._echo = self._clock.monotonic()


async def _first_of(*waits: Awaitable[object]) -> None:
    """Return when one of them is done; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
