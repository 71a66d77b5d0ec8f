"""The simulated database server: runs calls, injects faults, and has the auditor check changes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from umbel.testing.simulation.auditor import Auditor
from umbel.testing.simulation.database import (
    MemoryDatabase,
    PortCall,
    Request,
    SimulatedDatabase,
    unavailable,
)
from umbel.testing.simulation.loop import Timeline
from umbel.testing.simulation.random_faults import IDEAL_CONDITIONS, SeededRandom
from umbel.testing.simulation.snapshot import TABLES, Snapshot

if TYPE_CHECKING:
    from umbel.testing.simulation.trace import Trace

_TOUCHED = {
    "heartbeat": ("worker",),
    "register": ("worker",),
    "unregister": ("worker",),
    "remove": ("worker",),
    "record_progress": (),
    "commit": ("pause", "section"),
}
"""The tables that a method can change; for other methods, all. At the end all are checked."""


class Server:
    """Runs each call as one step when it arrives."""

    def __init__(
        self,
        memory_database: MemoryDatabase,
        timeline: Timeline,
        rng: SeededRandom,
        auditor: Auditor,
        trace: Trace,
    ) -> None:
        self.memory_database = memory_database
        self.rng = rng
        self.databases: list[SimulatedDatabase] = []
        self.down_until = 0.0
        self.snapshot = Snapshot()
        self.on_change: Callable[[], None] = lambda: None
        self.on_late_claim: Callable[[], None] = lambda: None
        self._timeline = timeline
        self._auditor = auditor
        self._trace = trace
        self._lane = timeline.lane("server")

    def serves_at_once(self, request: Request, *, free: bool) -> bool:
        """Choose the conditions of a call. Return True if it was answered immediately."""
        now, rng = self._timeline.now, self.rng
        request.conditions = conditions = rng.conditions()
        if conditions.fault:
            owner, use = request.database.owner.name, request.database.use
            self._trace.add(owner, conditions.fault, f"{use} {request.port_call.name}".strip())
        if (
            conditions is not IDEAL_CONDITIONS
            or self.down_until > now
            or request.database.cut_until > now
        ):
            return False
        if not free or not rng.chance(rng.quick):
            return False
        self._serve(request)
        return True

    def send(self, request: Request) -> None:
        """Send a call to the server."""
        if request.conditions.there:
            self._lane.call_later(request.conditions.there, self._arrive, request)
        else:
            self._lane.call_soon(self._arrive, request)

    def _arrive(self, request: Request) -> None:
        fault, owner = request.conditions.fault, request.database.owner
        if owner.gone and self.rng.chance(0.5):
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
        if self.rng.chance(0.5):
            self._lane.call_soon(request.fail, unavailable("no connection"))
        else:
            self._lane.call_at(until, request.fail, unavailable("no answer"))
        return True

    def _serve(self, request: Request) -> None:
        fault, owner = request.conditions.fault, request.database.owner
        error: Exception | None = None
        result: Any = None
        try:
            with request.database.translate_errors():
                result = self._perform(request)
        except Exception as raised:  # noqa: BLE001 - raised in the caller
            error = raised
        if fault == "crash after" and owner.crash("after a call"):
            return
        if error is not None:
            self._later(request, request.fail, error)
        elif fault in ("lost", "hang", "crash after"):
            self._later(request, request.fail, unavailable("the answer is lost"))
        else:
            if request.port_call.name == "fetch" and result[0]:
                self._delay_claim(request)
            self._later(request, request.succeed, result)

    def _perform(self, request: Request) -> Any:
        connection, before = self.memory_database.connection, self.snapshot
        changes = connection.total_changes
        try:
            return request.work(connection)
        finally:
            if connection.total_changes != changes:
                tables = _touched(request.port_call)
                self.snapshot = before.after(connection, tables)
                self._auditor.check(
                    request.database.owner, request.port_call, before, self.snapshot
                )
                self.on_change()
                if "job" in tables or "pause" in tables:  # no caller waits for other changes
                    self._notify()

    def _later(self, request: Request, how: Any, what: Any) -> None:
        if request.conditions.back:
            self._lane.call_later(request.conditions.back, how, what)
        else:
            how(what)

    def _delay_claim(self, request: Request) -> None:
        delay = self.rng.claim_delay()
        if delay:
            request.conditions = request.conditions._replace(back=request.conditions.back + delay)
            self._trace.add(request.database.owner.name, "late claim")
            self.on_late_claim()

    def _notify(self) -> None:
        """Notify the other databases of a change: immediately, late, twice or not at all."""
        for database in self.databases:
            lane = database.lane
            if lane.dead or not database.use.endswith("intake"):
                continue
            dice = self.rng.random.random()
            if dice < self.rng.lossy:
                self.rng.count("hint dropped")
                continue
            lane.call_soon(database.notifier.notify_all)
            if dice > 0.97:
                self.rng.count("hint doubled")
                lane.call_later(self.rng.between(0, 0.5), database.notifier.notify_all)

    def finish(self) -> Snapshot:
        """Return a snapshot of all tables."""
        return Snapshot().after(self.memory_database.connection)


def _touched(port_call: PortCall) -> Sequence[str]:
    """Return the tables that a call can have changed. Registering may remove counted deaths."""
    if port_call.name == "register" and port_call.args[0].former:
        return TABLES
    return _TOUCHED.get(port_call.name, TABLES)


def attempt_outcomes(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """Return how each attempt of each finished job ended, according to its record."""
    found: dict[str, list[str]] = {}
    query = (
        "select record.id, json_extract(value, '$.ended') from record, json_each(record.attempts)"
        " order by record.id, key"
    )
    for job, ended in connection.execute(query):
        found.setdefault(job, []).append(ended)
    return found
