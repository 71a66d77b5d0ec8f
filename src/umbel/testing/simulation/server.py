"""The simulated database server: carries calls, has faults, and shows each step to the auditor."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from umbel.testing.simulation.auditor import Auditor
from umbel.testing.simulation.database import (
    Ground,
    Intent,
    Request,
    SimulatedDatabase,
    unavailable,
)
from umbel.testing.simulation.fate import SMOOTH, Fate
from umbel.testing.simulation.loop import Timeline
from umbel.testing.simulation.picture import TABLES, Picture

if TYPE_CHECKING:
    from umbel.testing.simulation.trace import Trace

_TOUCHED = {
    "beat": ("worker",),
    "enlist": ("worker",),
    "leave": ("worker",),
    "remove": ("worker",),
    "progress": (),
    "pause": ("pause", "control"),
    "resume": ("pause", "control"),
}
"""Which tables a method can change, when it is not jobs. The end of a run looks at everything."""


class Server:
    """Runs each call whole, at the moment it arrives."""

    def __init__(
        self, ground: Ground, timeline: Timeline, fate: Fate, auditor: Auditor, trace: Trace
    ) -> None:
        self.ground = ground
        self.fate = fate
        self.databases: list[SimulatedDatabase] = []
        self.down_until = 0.0
        self.picture = Picture()
        self.on_change: Callable[[], None] = lambda: None
        self.on_late_claim: Callable[[], None] = lambda: None
        self._timeline = timeline
        self._auditor = auditor
        self._trace = trace
        self._lane = timeline.lane("server")

    def serves_at_once(self, request: Request, *, free: bool) -> bool:
        """Decide how a call fares. True when it is answered before its caller gives way."""
        now, fate = self._timeline.now, self.fate
        request.trip = trip = fate.trip()
        if trip.fault:
            owner, use = request.database.owner.name, request.database.use
            self._trace.add(owner, trip.fault, f"{use} {request.intent.name}".strip())
        if trip is not SMOOTH or self.down_until > now or request.database.cut_until > now:
            return False
        if not free or not fate.chance(fate.quick):
            return False
        self._serve(request)
        return True

    def send(self, request: Request) -> None:
        """Take a call on its way."""
        if request.trip.there:
            self._lane.call_later(request.trip.there, self._arrive, request)
        else:
            self._lane.call_soon(self._arrive, request)

    def _arrive(self, request: Request) -> None:
        fault, owner = request.trip.fault, request.database.owner
        if owner.gone and self.fate.chance(0.5):
            return  # its connection was closed before the server read the call
        if self._unreachable(request):
            return
        if fault == "crash before" and owner.crash("before a call"):
            return
        if fault in ("crash before", "refused"):
            self._later(request, request.fail, unavailable("refused"))
        else:
            self._serve(request)

    def _unreachable(self, request: Request) -> bool:
        until = max(self.down_until, request.database.cut_until)
        if until <= self._timeline.now:
            return False
        if self.fate.chance(0.5):
            self._lane.call_soon(request.fail, unavailable("no connection"))
        else:
            self._lane.call_at(until, request.fail, unavailable("no answer"))
        return True

    def _serve(self, request: Request) -> None:
        fault, owner = request.trip.fault, request.database.owner
        error: Exception | None = None
        result: Any = None
        try:
            with request.database.explaining():
                result = self._perform(request)
        except Exception as raised:  # noqa: BLE001 - it is the caller's
            error = raised
        if fault == "crash after" and owner.crash("after a call"):
            return
        if error is not None:
            self._later(request, request.fail, error)
        elif fault in ("lost", "hang", "crash after"):
            self._later(request, request.fail, unavailable("the answer is lost"))
        else:
            if request.intent.name == "fetch" and result[0]:
                self._delay_claim(request)
            self._later(request, request.succeed, result)

    def _perform(self, request: Request) -> Any:
        connection, before = self.ground.connection, self.picture
        changes = connection.total_changes
        try:
            return request.work(connection)
        finally:
            if connection.total_changes != changes:
                tables = _touched(request.intent)
                self.picture = before.after(connection, tables)
                self._auditor.check(request.database.owner, request.intent, before, self.picture)
                self.on_change()
                if "job" in tables or "pause" in tables:  # nobody waits for anything else
                    self._ring()

    def _later(self, request: Request, how: Any, what: Any) -> None:
        if request.trip.back:
            self._lane.call_later(request.trip.back, how, what)
        else:
            how(what)

    def _delay_claim(self, request: Request) -> None:
        delay = self.fate.claim_delay()
        if delay:
            request.trip = request.trip._replace(back=request.trip.back + delay)
            self._trace.add(request.database.owner.name, "late claim")
            self.on_late_claim()

    def _ring(self) -> None:
        """Something was written: hint at it, late, twice or not at all."""
        for database in self.databases:
            lane = database.lane
            if lane.dead or not database.use.endswith("intake"):
                continue
            dice = self.fate.random.random()
            if dice < self.fate.lossy:
                self.fate.count("hint dropped")
                continue
            lane.call_soon(database.bell.ring_all)
            if dice > 0.97:
                self.fate.count("hint doubled")
                lane.call_later(self.fate.between(0, 0.5), database.bell.ring_all)

    def finish(self) -> Picture:
        """Everything as it is at the end."""
        return Picture().after(self.ground.connection)


def _touched(intent: Intent) -> Sequence[str]:
    """Which tables a call can have changed. Who was alive takes deaths back when it enlists."""
    if intent.name == "enlist" and intent.args[0].former:
        return TABLES
    return _TOUCHED.get(intent.name, TABLES)


def stories(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """How each attempt of each finished job ended, as its record tells."""
    found: dict[str, list[str]] = {}
    query = (
        "select record.id, json_extract(value, '$.ended') from record, json_each(record.attempts)"
        " order by record.id, key"
    )
    for job, ended in connection.execute(query):
        found.setdefault(job, []).append(ended)
    return found
