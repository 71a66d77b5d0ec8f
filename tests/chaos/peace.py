"""The end of a run: no more faults, no more publishing, and everything has to come to an end."""

from __future__ import annotations

import time
from collections.abc import Callable

from desk import Client

from chaos.append_log import AppendLog
from chaos.audit import Audit
from chaos.crew import LEASE, Crew
from chaos.diary import Diary
from chaos.noted import all_noted
from chaos.places import Place
from umbel import State
from umbel.backends import JobFilter
from umbel.errors import Unavailable

PEACE = 150.0
"""Seconds after which whatever still lives is stuck."""
_PATIENCE = 15.0
"""Seconds for everything that was put off on purpose: delays, retries, snoozes."""


class Peace:
    """Lets the crew work to the end, with the new release everywhere."""

    def __init__(
        self, crew: Crew, place: Place, desk: Client, audit: Audit | AppendLog, diary: Diary
    ) -> None:
        self._crew = crew
        self._place = place
        self._desk = desk
        self._audit = audit
        self._diary = diary
        self._began = time.monotonic()

    def kept(self, *, ahead: float) -> bool:
        """Whether everything has ended. ``ahead``: how far in the future any clock has been."""
        crew = self._crew
        self._stop_publishers()
        for worker in crew.workers:
            if worker.release == "old":
                worker.release = "new"
                crew.stop(worker)
        if crew.one_clock:  # whatever was put off while the clock was ahead is due only then
            crew.set_clock(crew.workers[0], ahead)
        if not self._nothing_left():
            return False
        self._replay()
        return self._emptied()

    def _emptied(self) -> bool:
        """Whether nothing is left anywhere when all workers have gone."""
        crew = self._crew
        while self._nothing_left():
            for worker in crew.workers:
                crew.stop(worker)
            if not _until(self._all_gone, time.monotonic() + 20 + LEASE):
                return False
            if self._nothing_waits():
                return True
            # A message that nobody had noted came while they were leaving.
            for worker in crew.workers:
                crew.start(worker)
        return False

    def _nothing_waits(self) -> bool:
        """Nothing lives in the books, and nothing is on its way to them."""
        if self._desk.live():
            return False
        place = self._place
        return place.carrier is None or all_noted(self._crew.folder / "diaries", self._audit)

    def _stop_publishers(self) -> None:
        crew, publishers = self._crew, self._crew.publishers
        for act in (crew.stop, crew.kill):
            for publisher in publishers:
                if publisher.alive:
                    act(publisher)
            _until(lambda: not any(p.alive for p in publishers), time.monotonic() + 20)
        crew.reap(renew=False)
        crew.publishers = []

    def _nothing_left(self) -> bool:
        return _until(self._nothing_lives, self._began + PEACE, every=0.3)

    def _nothing_lives(self) -> bool:
        self._crew.reap()
        try:
            for pause in self._desk.ask(lambda o: o.pauses()):
                if not pause.holder:
                    self._desk.ask(lambda o, p=pause: o.resume(p.scope, p.name))  # type: ignore[misc]
            if self._nothing_waits():
                return True
            if time.monotonic() - self._began > _PATIENCE:
                # Suspects of a worker's death come back minutes apart. When nothing else is to be
                # done, the next one's time has come.
                self._audit.bring_forward()
        except Unavailable:
            pass
        return False

    def _all_gone(self) -> bool:
        self._crew.reap(renew=False)
        return not any(worker.alive for worker in self._crew.workers)

    def _replay(self) -> None:
        """The old release buried jobs with an argument that only the new one has: they can run now.

        A task that only the new release has is no reason to bury a job.
        """
        wanted = JobFilter(states=(State.BURIED,), limit=1_000_000)
        buried = self._desk.ask(lambda o: o.jobs(wanted))
        jobs = [record.id for record in buried if record.task == "release.changed"]
        for job in jobs:
            self._diary.write("replayed", job=job)
        if jobs:
            self._desk.ask(lambda o: o.retry(jobs))


def _until(condition: Callable[[], bool], deadline: float, every: float = 0.05) -> bool:
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True
