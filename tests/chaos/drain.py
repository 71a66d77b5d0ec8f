"""The end of a run: no more faults, no more publishing, and all jobs have to finish."""

from __future__ import annotations

import time
from collections.abc import Callable

from scenario_client import Client

from chaos.append_log import AppendLog
from chaos.audit import Audit
from chaos.backends_under_test import BackendUnderTest
from chaos.event_log import EventLog
from chaos.processes_under_test import LEASE, ProcessGroup
from chaos.publish_confirmations import all_recorded
from umbel import State
from umbel.backends import JobFilter
from umbel.errors import Unavailable

DRAIN_SECONDS = 150.0
"""Seconds after which an unfinished job is stuck."""
_DELAYED_JOBS_SECONDS = 15.0
"""Seconds that jobs with delays, retries and snoozes need to become due."""


class Drain:
    """Upgrades all workers to the new release and waits until they have finished all jobs."""

    def __init__(
        self,
        group: ProcessGroup,
        backend: BackendUnderTest,
        client: Client,
        audit: Audit | AppendLog,
        event_log: EventLog,
    ) -> None:
        self._group = group
        self._backend = backend
        self._client = client
        self._audit = audit
        self._event_log = event_log
        self._began = time.monotonic()

    def finish_all_jobs(self, *, ahead: float) -> bool:
        """Return whether all jobs have finished. ``ahead``: the most that any clock was ahead."""
        group = self._group
        self._stop_publishers()
        for worker in group.workers:
            if worker.release == "old":
                worker.release = "new"
                group.stop(worker)
        if group.one_clock:  # jobs delayed while the clock was ahead become due only then
            group.set_clock(group.workers[0], ahead)
        if not self._wait_until_no_job_is_live():
            return False
        self._replay()
        return self._stop_workers_and_check()

    def _stop_workers_and_check(self) -> bool:
        """Return whether no job is left after all workers have stopped."""
        group = self._group
        while self._wait_until_no_job_is_live():
            for worker in group.workers:
                group.stop(worker)
            if not _until(self._all_workers_ended, time.monotonic() + 20 + LEASE):
                return False
            if self._store_is_empty():
                return True
            # A message that was not in the job store yet arrived while the workers stopped.
            for worker in group.workers:
                group.start(worker)
        return False

    def _store_is_empty(self) -> bool:
        """Return whether the store has no unfinished job and no message is on its way to it."""
        if self._client.live():
            return False
        backend = self._backend
        return backend.transport_queues is None or all_recorded(
            self._group.folder / "events", self._audit
        )

    def _stop_publishers(self) -> None:
        group, publishers = self._group, self._group.publishers
        for act in (group.stop, group.kill):
            for publisher in publishers:
                if publisher.alive:
                    act(publisher)
            _until(lambda: not any(p.alive for p in publishers), time.monotonic() + 20)
        group.reap(renew=False)
        group.publishers = []

    def _wait_until_no_job_is_live(self) -> bool:
        return _until(self._no_job_is_live, self._began + DRAIN_SECONDS, every=0.3)

    def _no_job_is_live(self) -> bool:
        self._group.reap()
        try:
            for pause in self._client.ask(lambda o: o.pauses()):
                if not pause.holder:
                    self._client.ask(lambda o, p=pause: o.resume(p.scope, p.name))  # type: ignore[misc]
            if self._store_is_empty():
                return True
            if time.monotonic() - self._began > _DELAYED_JOBS_SECONDS:
                # Jobs suspected of killing a worker are retried minutes apart. When no other job is
                # left, make the next one due now.
                self._audit.bring_forward()
        except Unavailable:
            pass
        return False

    def _all_workers_ended(self) -> bool:
        self._group.reap(renew=False)
        return not any(worker.alive for worker in self._group.workers)

    def _replay(self) -> None:
        """Retry the jobs that the old release buried because it did not know their argument.

        Jobs whose task only the new release has are not buried.
        """
        wanted = JobFilter(states=(State.BURIED,), limit=1_000_000)
        buried = self._client.ask(lambda o: o.jobs(wanted))
        jobs = [record.id for record in buried if record.task == "release.changed"]
        for job in jobs:
            self._event_log.write("replayed", job=job)
        if jobs:
            self._client.ask(lambda o: o.retry(jobs))


def _until(condition: Callable[[], bool], deadline: float, every: float = 0.05) -> bool:
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True
