"""Declares the schedules of an application, and keeps its declarations alive while it runs."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from umbel.backends import Coordination, Put, json_value
from umbel.clock import Clock
from umbel.messages import Envelope
from umbel.schedules.catalog import CODE, LIVE, RETIRE_SECONDS, TIMES, VERSION, decode, read_all
from umbel.schedules.definitions import Definition, Plan
from umbel.schedules.timing import Calendar, next_function
from umbel.telemetry import Telemetry, events

RENEW_SECONDS = 10.0
_PER_COMMIT = 400
_CALENDAR_SECONDS = 5.0
"""How long an application's calendar may take."""
_CALENDAR_INTERVAL = 30.0
_CALENDAR_TIMES = 100
_MAX_CALENDAR_STEPS = 1_000

T = TypeVar("T")


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule that the application declares."""

    name: str
    plan: Plan
    template: Envelope
    calendar: Calendar | None = None

    @property
    def definition(self) -> Definition:
        """What is stored of it."""
        return Definition(plan=self.plan, template=self.template)


class Declarations:
    """The declarations of one process. ``renew`` has to be called every few seconds."""

    def __init__(
        self,
        coordination: Coordination,
        declared: Sequence[Declared],
        *,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._coordination = coordination
        self._declared = declared
        self._clock = clock
        self._telemetry = telemetry
        self._keys: dict[str, Definition] | None = None
        self._markers: dict[str, int] = {}
        """The entries under lease that say which declarations are alive, with their revisions."""
        self._renewed = float("-inf")
        self._calendars = _CalendarThreads()
        self._calendars_asked = float("-inf")

    def __len__(self) -> int:
        return len(self._declared)

    async def renew(self) -> None:
        """Write the declarations if they are missing, and keep them alive."""
        now = self._clock.monotonic()
        if not self._declared or now - self._renewed < RENEW_SECONDS:
            return
        if not self._markers or await self._coordination.renew(self._markers, RETIRE_SECONDS):
            await self._declare()
        self._renewed = now
        if now - self._calendars_asked >= _CALENDAR_INTERVAL:
            self._calendars_asked = now
            await self._compute_calendars()

    async def _declare(self) -> None:
        definitions = self._definitions()
        while True:
            entries, _, now = await read_all(self._coordination, CODE)
            known = {entry.key for entry in entries}
            missing = {key: one for key, one in definitions.items() if CODE + key not in known}
            if not missing:
                break
            await self._write([*missing.items()][:_PER_COMMIT], now)
        await self._mark([*definitions])

    async def _write(self, missing: Sequence[tuple[str, Definition]], now: float) -> None:
        puts = [
            Put(CODE + key, msgspec.structs.replace(one, since=now).encode(key))
            for key, one in missing
        ]
        # Another worker with the same code may have been faster.
        await self._coordination.commit({put.key: 0 for put in puts}, [*puts, Put(VERSION)])

    async def _mark(self, keys: Sequence[str]) -> None:
        """Say that a running worker has these declarations. Workers with the same code share it."""
        portions = [keys[at : at + _PER_COMMIT] for at in range(0, len(keys), _PER_COMMIT)]
        values = [json_value(portion) for portion in portions]
        wanted = {LIVE + hashlib.sha256(one).hexdigest()[:16]: one for one in values}
        while True:
            entries, _, _ = await read_all(self._coordination, LIVE)
            found = {entry.key: entry.revision for entry in entries if entry.key in wanted}
            lost = await self._coordination.renew(found, RETIRE_SECONDS) if found else []
            new = [Put(key, wanted[key], RETIRE_SECONDS) for key in wanted if key not in found]
            if not new and not lost:
                self._markers = found
                return
            if new:
                await self._coordination.commit({put.key: 0 for put in new}, [*new, Put(VERSION)])

    def _definitions(self) -> Mapping[str, Definition]:
        """Return the definitions by ``<name>/<fingerprint>``."""
        if self._keys is None:
            built = [(one.name, one.definition) for one in self._declared]
            self._keys = {f"{name}/{one.fingerprint}": one for name, one in built}
            for one in self._declared:
                if one.plan.warning:
                    self._telemetry.emit(
                        events.ScheduleDoubtful(schedule=one.name, reason=one.plan.warning)
                    )
        return self._keys

    # --- calendars ---------------------------------------------------------------------------

    async def _compute_calendars(self) -> None:
        """Store the next times of the application's calendars. No calendar waits for another."""
        keys = dict(zip((one.name for one in self._declared), self._definitions(), strict=True))
        having = [one for one in self._declared if one.calendar is not None]
        await asyncio.gather(*(self._compute(one, TIMES + keys[one.name]) for one in having))

    async def _compute(self, declared: Declared, key: str) -> None:
        page = await self._coordination.read(key)
        entry = next((one for one in page.entries if one.key == key), None)
        old = decode(entry.value, list[int]) if entry is not None else []
        known, now = old if isinstance(old, list) else [], int(page.now)
        find_next = next_function(declared.plan.timing, declared.calendar)

        def compute() -> list[int]:
            past = [one for one in known if one <= now][-_CALENDAR_TIMES:]
            # After a downtime: from the last time that is known, so that missed ticks are found.
            last = past[-1] if past and past[-1] == known[-1] else now
            found: list[int] = []
            for _ in range(_MAX_CALENDAR_STEPS):
                following = find_next(last)
                if following is None or len(found) >= 2 * _CALENDAR_TIMES:
                    break
                found, last = [*found, following], following
            late = [one for one in found if one <= now][-_CALENDAR_TIMES:]
            return [*past, *late, *(one for one in found if one > now)][-3 * _CALENDAR_TIMES :]

        try:
            times = await self._calendars.call(declared.name, compute, _CALENDAR_SECONDS)
        except TimeoutError:
            error = f"it has not returned within {_CALENDAR_SECONDS:g} s"
        except Exception as raised:  # noqa: BLE001 - the function is user code
            error = repr(raised)
        else:
            if times != known:
                checks = {key: entry.revision if entry is not None else 0}
                await self._coordination.commit(checks, [Put(key, json_value(times)), Put(VERSION)])
            return
        self._telemetry.emit(events.ScheduleFailed(schedule=declared.name, error=error))


class _CalendarThreads:
    """Calls functions of the application in threads: one that hangs affects no other."""

    def __init__(self) -> None:
        self._threads: dict[str, threading.Thread] = {}

    async def call(self, name: str, function: Callable[[], T], seconds: float) -> T:
        """Return the result. Raise TimeoutError if it takes too long, or an earlier call hangs."""
        if name in self._threads and self._threads[name].is_alive():
            raise TimeoutError
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                value = function()
            except BaseException as error:  # noqa: BLE001 - passed to the caller
                _tell(loop, result, error=error)
            else:
                _tell(loop, result, value=value)

        self._threads[name] = threading.Thread(target=run, name=f"calendar {name}", daemon=True)
        self._threads[name].start()
        async with asyncio.timeout(seconds):
            return await result


def _tell(
    loop: asyncio.AbstractEventLoop,
    result: asyncio.Future[T],
    *,
    value: T | None = None,
    error: BaseException | None = None,
) -> None:
    def settle() -> None:
        if result.done():
            return
        if error is None:
            result.set_result(value)  # type: ignore[arg-type]  # the function has returned it
        elif isinstance(error, Exception):
            result.set_exception(error)
        else:
            result.set_exception(RuntimeError(repr(error)))

    if not loop.is_closed():
        loop.call_soon_threadsafe(settle)
