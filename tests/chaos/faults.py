"""The deck of faults. Which one comes when is drawn by the seed."""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from desk import Desk

from chaos.crew import LEASE, Crew, Member
from chaos.diary import Diary, read
from chaos.places import Place
from umbel.errors import Unavailable, UnknownJob

Later = Callable[[], None]


class Deck:
    """Draws faults, and undoes those that last when their time is over."""

    def __init__(
        self,
        crew: Crew,
        place: Place,
        desk: Desk,
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
        self._full = False
        self._faults = {
            name: fault
            for name, fault in self._known().items()
            if not only or any(word in name for word in only)
        }
        self._first = list(self._faults)
        self._pick.shuffle(self._first)

    def _known(self) -> dict[str, tuple[float, Callable[[], bool]]]:
        known: dict[str, tuple[float, Callable[[], bool]]] = {
            "worker killed": (6, self._kill),
            "worker frozen": (5, self._freeze),
            "worker stopped and started": (3, self._stop),
            "other release": (2, self._roll),
            "clock wrong": (3, self._wrong_clock),
            "publisher killed": (2, self._kill_publisher),
            "paused": (3, self._pause),
            "cancelled": (6, self._cancel),
        }
        if self._place.disk is not None:
            known["disk full"] = (1.5, self._fill_disk)
        if self._place.server is not None:
            known["server restarted, fast"] = (1, lambda: self._restart("fast"))
            known["server restarted, immediate"] = (1, lambda: self._restart("immediate"))
            known["line slow"] = (1.5, lambda: self._line("slow"))
            known["line cut"] = (2, self._cut)
            known["line dead"] = (1.5, lambda: self._line("dead"))
        return known

    def strike(self) -> None:
        """One fault: first each kind once, in some order, then by weight."""
        if self._first:
            name = self._first.pop()
        else:
            weights = [weight for weight, _ in self._faults.values()]
            name = self._pick.choices([*self._faults], weights)[0]
        if self._faults[name][1]():
            self.done[name] += 1
            self._diary.write("fault", note=name)

    def undo(self, *, all_of_it: bool = False) -> None:
        """Undo what has lasted long enough."""
        while self._later and (all_of_it or self._later[0][0] <= time.monotonic()):
            heapq.heappop(self._later)[2]()

    def _after(self, seconds: float, act: Later) -> None:
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
        shift = self._pick.choice([-7200.0, -600.0, 0.0, 900.0, 10800.0])
        self.ahead = max(self.ahead, shift)
        self._crew.set_clock(worker, shift)
        return True

    # --- operators ---------------------------------------------------------------------------

    def _pause(self) -> bool:
        scope, name = self._pick.choice(
            [("all", ""), ("queue", "default"), ("task", "chaos.work.coroutine")]
        )
        try:
            epoch = self._desk.ask(lambda o: o.pause(scope, name, "chaos"))  # type: ignore[arg-type]
        except Unavailable:
            return False
        self._after(self._pick.uniform(1.0, 2.5), lambda: self._resume(epoch, scope, name))
        return True

    def _resume(self, epoch: int, scope: str, name: str) -> None:
        try:
            done, alive = self._desk.ask(lambda o: o.confirmed(epoch, 0))
            self._diary.write("pause confirmed", note=f"{done}/{alive}")
            self._desk.ask(lambda o: o.resume(scope, name))  # type: ignore[arg-type]
        except Unavailable:
            self._after(0.5, lambda: self._resume(epoch, scope, name))

    def _cancel(self) -> bool:
        published = _last_published(self._crew.folder / "diaries")
        wanted = self._pick.sample(published, min(3, len(published)))
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

    # --- disk, server, line ------------------------------------------------------------------

    def _fill_disk(self) -> bool:
        disk, pids = self._place.disk, self._crew.pids()
        if disk is None or self._full:
            return False
        disk.fill(pids)
        self._full = True
        self._after(self._pick.uniform(1.0, 2.5), lambda: self._free_disk(pids))
        return True

    def _free_disk(self, pids: list[int]) -> None:
        if self._place.disk is not None:
            self._place.disk.free(pids)
        self._full = False
        self._place.get_up()  # a server that could not write may have given up

    def _restart(self, mode: str) -> bool:
        if self._place.server is None or self._full:
            return False
        self._place.server.stop(mode)
        time.sleep(self._pick.uniform(0, 1.0))
        self._place.server.start()
        return True

    def _line(self, mood: str) -> bool:
        proxy = self._place.proxy
        if proxy is None:
            return False
        proxy.be(mood)  # type: ignore[arg-type]
        self._after(self._pick.uniform(1.0, LEASE * 1.3), lambda: proxy.be("fine"))
        return True

    def _cut(self) -> bool:
        return self._place.proxy is not None and self._place.proxy.cut() > 0


def _last_published(folder: Path) -> list[str]:
    lines = read(folder, "publisher-*.diary")[-120:]
    return [line.job for line in lines if line.what in ("published", "committed")]
