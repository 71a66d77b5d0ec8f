"""The deck of faults. Which one comes when is drawn by the seed."""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from desk import Client

from chaos.carriers import LANES
from chaos.crew import FAKETIME, LEASE, Crew, Member
from chaos.diary import Diary
from chaos.machines import Program
from chaos.noted import all_noted, published
from chaos.places import Place, Station
from chaos.proxy import Mood
from umbel.backends.transport import Lane
from umbel.errors import Unavailable, UnknownJob

Later = Callable[[], None]
Known = dict[str, tuple[float, Callable[[], bool]]]

_DELETED = "queue deleted"
_MONTH = 30 * 86_400.0
_NOTED = 3.0
"""Seconds after which whoever published has noted it in the books, or was told of an error."""
_REST = 10.0
"""Seconds without a fault of the store in which the books become whole."""


class Deck:
    """Draws faults, and undoes those that last when their time is over."""

    def __init__(
        self,
        crew: Crew,
        place: Place,
        desk: Client,
        diary: Diary,
        *,
        seed: int,
        only: Sequence[str] = (),
    ) -> None:
        self.done: Counter[str] = Counter()
        self.ahead = 0.0
        """The furthest any worker's clock ever was in the future."""
        self._crew = crew
        self._place = place
        self._desk = desk
        self._diary = diary
        self._pick = random.Random(seed)
        self._later: list[tuple[float, int, Later]] = []
        self._order = itertools.count()
        self._full = self._over = False
        self._hurt = self._spared = 0.0
        """Until when the store has a fault, and until when it is to have none."""
        self._faults = {
            name: fault
            for name, fault in self._known().items()
            if not only or any(word in name for word in only)
        }
        self._first = list(self._faults)
        self._pick.shuffle(self._first)
        self._turns = Counter(self._first)

    def _known(self) -> Known:
        known: Known = {
            "worker killed": (6, self._kill),
            "worker frozen": (5, self._freeze),
            "worker stopped and started": (3, self._stop),
            "other release": (2, self._roll),
            "publisher killed": (2, self._kill_publisher),
            "paused": (3, self._pause),
            "cancelled": (6, self._cancel),
        }
        if FAKETIME is not None:
            known["clock wrong"] = (3, self._wrong_clock)
        if self._place.disk is not None:
            known["disk full"] = (1.5, self._fill_disk)
        for station in self._place.stations:
            known |= self._known_of(station)
        if len(self._place.stations) > 1:
            known["both lines dead"] = (1.5, self._lose_both)
        if self._place.carrier is not None:
            known[_DELETED] = (1.5, self._plan_deletion)
        return known

    def _known_of(self, station: Station) -> Known:
        """What may happen to a server and its line."""
        often = 2 / len(station.machine.ways)
        known: Known = {
            f"{station.what} restarted, {way}": (often, partial(self._restart, station, way))
            for way in station.machine.ways
        }
        if isinstance(station.machine, Program):
            known[f"{station.what} frozen"] = (1, partial(self._freeze_server, station))
        known[f"{station.line} slow"] = (1.5, partial(self._line, station, "slow"))
        known[f"{station.line} cut"] = (2, partial(self._cut, station))
        known[f"{station.line} dead"] = (1.5, partial(self._line, station, "dead"))
        return known

    def strike(self) -> None:
        """One fault: first each kind once, in some order, then by weight.

        One that cannot happen in its first turn has a second.
        """
        if self._first:
            name = self._first.pop()
        else:
            weights = [weight for weight, _ in self._faults.values()]
            name = self._pick.choices([*self._faults], weights)[0]
        if self._faults[name][1]():
            self._happened(name)
        elif self._turns[name]:
            self._turns[name] -= 1
            self._first.insert(0, name)

    def _happened(self, name: str) -> None:
        self.done[name] += 1
        self._diary.write("fault", note=name)

    def undo(self, *, all_of_it: bool = False) -> None:
        """Undo what has lasted long enough; after all of it nothing more is planned."""
        self._over = all_of_it
        while self._later and (all_of_it or self._later[0][0] <= time.monotonic()):
            heapq.heappop(self._later)[2]()

    def _after(self, seconds: float, act: Later) -> None:
        if not self._over:
            heapq.heappush(self._later, (time.monotonic() + seconds, next(self._order), act))

    # --- processes ---------------------------------------------------------------------------

    def _anyone(self, members: list[Member]) -> Member | None:
        able = [m for m in members if m.alive and not m.frozen and not m.leaving]
        return self._pick.choice(able) if able else None

    def _kill(self) -> bool:
        worker = self._anyone(self._crew.workers)
        if worker is not None:
            self._crew.kill(worker)
        return worker is not None

    def _kill_publisher(self) -> bool:
        publisher = self._anyone(self._crew.publishers)
        if publisher is not None:
            self._crew.kill(publisher)
        return publisher is not None

    def _freeze(self) -> bool:
        """For longer than its lease: others take its jobs, and it wakes with old leases."""
        worker = self._anyone(self._crew.workers)
        if worker is None or sum(member.frozen for member in self._crew.workers) >= 2:
            return False
        self._crew.freeze(worker)
        life = worker.pid
        self._after(LEASE * self._pick.uniform(1.5, 2.2), lambda: self._wake(worker, life))
        return True

    def _wake(self, worker: Member, life: int) -> None:
        if worker.pid == life and worker.frozen:
            self._crew.wake(worker)

    def _stop(self) -> bool:
        worker = self._anyone(self._crew.workers)
        if worker is not None:
            self._crew.stop(worker)
        return worker is not None

    def _roll(self) -> bool:
        """Stopped in good order; it comes back with the other release's code."""
        worker = self._anyone(self._crew.workers)
        if worker is None:
            return False
        worker.release = "old" if worker.release == "new" else "new"
        self._crew.stop(worker)
        return True

    def _wrong_clock(self) -> bool:
        worker = self._pick.choice(self._crew.workers)
        shift = self._pick.choice([-_MONTH, -7200.0, -600.0, 0.0, 900.0, 10800.0, _MONTH])
        self.ahead = max(self.ahead, shift)
        self._crew.set_clock(worker, shift)
        return True

    # --- operators ---------------------------------------------------------------------------

    def _pause(self) -> bool:
        scope, name = self._pick.choice(
            [("all", ""), ("queue", "default"), ("task", "chaos.work.coroutine")]
        )
        if self._store_is_away():
            return False
        try:
            epoch = self._desk.ask(lambda o: o.pause(scope, name, "chaos"))  # type: ignore[arg-type]
        except Unavailable:
            return False
        self._after(self._pick.uniform(1.0, 2.5), lambda: self._resume(epoch, scope, name))
        return True

    def _resume(self, epoch: int, scope: str, name: str) -> None:
        if self._store_is_away():
            self._after(0.5, lambda: self._resume(epoch, scope, name))
            return
        try:
            done, alive = self._desk.ask(lambda o: o.confirmed(epoch, 0))
            self._diary.write("pause confirmed", note=f"{done}/{alive}")
            self._desk.ask(lambda o: o.resume(scope, name))  # type: ignore[arg-type]
        except Unavailable:
            self._after(0.5, lambda: self._resume(epoch, scope, name))

    def _cancel(self) -> bool:
        if self._store_is_away():
            return False
        lately = [line.job for line in published(self._crew.folder / "diaries")[-60:]]
        wanted = self._pick.sample(lately, min(3, len(lately)))
        for job in wanted:
            try:
                states = self._desk.ask(lambda o, job=job: o.cancel([job], "chaos"))  # type: ignore[misc]
            except (Unavailable, UnknownJob):  # one that is not to be remembered is unknown soon
                continue
            what = {"cancelled": "cancelled", "running": "asked to stop"}.get(
                states[job], "too late"
            )
            self._diary.write(what, job=job)
        return bool(wanted)

    def _store_is_away(self) -> bool:
        """Operators would only wait for it, and with them the end of other faults."""
        return self._place.store is not None and self._place.store.machine.away

    # --- disk, server, line ------------------------------------------------------------------

    def _fill_disk(self) -> bool:
        disk, pids = self._place.disk, self._crew.pids()
        lasts = self._pick.uniform(1.0, 2.5)
        if disk is None or self._full or not self._may_hurt(self._place.store, lasts):
            return False
        disk.fill(pids)
        self._full = True
        self._after(lasts, lambda: self._free_disk(pids))
        return True

    def _free_disk(self, pids: list[int]) -> None:
        if self._place.disk is not None:
            self._place.disk.free(pids)
        self._full = False
        if self._place.store is not None:  # one that could not write may have given up
            self._place.store.get_up()

    def _restart(self, station: Station, way: str) -> bool:
        server = station.machine
        if self._full or not self._may_hurt(station) or server.away:
            return False
        server.stop(way)
        pause = self._pick.uniform(0, 1.0)
        if isinstance(server, Program):
            self._after(pause, server.launch)
        else:
            time.sleep(pause)
            server.start()
        return True

    def _freeze_server(self, station: Station) -> bool:
        server = station.machine
        if not isinstance(server, Program) or server.away:
            return False
        server.freeze()
        self._after(self._pick.uniform(1.0, LEASE * 1.3), server.wake)
        return True

    def _line(self, station: Station, mood: Mood) -> bool:
        lasts = self._pick.uniform(1.0, LEASE * 1.3)
        if not self._may_hurt(station, lasts):
            return False
        station.proxy.be(mood)
        self._after(lasts, lambda: station.proxy.be("fine"))
        return True

    def _cut(self, station: Station) -> bool:
        return self._may_hurt(station) and station.proxy.cut() > 0

    def _lose_both(self) -> bool:
        """Neither answers."""
        broker, store = self._place.stations
        return self._line(store, "dead") and self._line(broker, "dead")

    # --- queues ------------------------------------------------------------------------------

    def _plan_deletion(self) -> bool:
        """An operator deletes a queue of the broker. The books know what was in it.

        They do, unless they were out of reach when that was published: then the broker alone has
        it, and who deletes it there has deleted the job. So this comes when the books are whole.
        """
        if time.monotonic() >= self._spared:
            self._spared = time.monotonic() + _REST
            self._delete_queue(self._pick.sample(LANES, len(LANES)))
        return False  # not yet

    def _delete_queue(self, lanes: Sequence[Lane]) -> None:
        """The first of these that there is; later, if the books are not whole yet."""
        carrier, now = self._place.carrier, time.monotonic()
        if carrier is None or now >= self._spared:
            return
        away = any(station.machine.away for station in self._place.stations)
        diaries = self._crew.folder / "diaries"
        if away or now < self._hurt + _NOTED or not all_noted(diaries, self._place.audit):
            self._after(0.3, partial(self._delete_queue, lanes))
        elif any(map(carrier.delete, lanes)):
            self._spared = time.monotonic() + _NOTED
            self._happened(_DELETED)

    def _may_hurt(self, station: Station | None, lasts: float = 0.0) -> bool:
        """Whether a fault may come now. If so it is noted: the books are not whole meanwhile."""
        now = time.monotonic()
        if station is not self._place.store or station is None:
            return True
        if now >= self._spared:
            self._hurt = max(self._hurt, now + lasts)
        return now >= self._spared
