"""Each tick is published exactly once while leaders are killed and frozen, and servers are down.

UMBEL_SCHEDULE_SECONDS=60 runs the first test for a minute; UMBEL_SCHEDULES_ON selects the stores.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import Workers, until
from servers import PrivatePostgres

from umbel import Umbel
from umbel.backends import JobFilter
from umbel.control import Election
from umbel.schedules import LEASE_SECONDS
from umbel.schedules.ticks import tick_id

SECONDS = int(os.environ.get("UMBEL_SCHEDULE_SECONDS", "10"))
SCHEDULES = int(os.environ.get("UMBEL_SCHEDULES", "200"))
BACKENDS = os.environ.get("UMBEL_SCHEDULES_ON", "sqlite,postgres,redis").split(",")
KILL_INTERVAL = 10


class Cluster:
    """Workers that only schedule, and what the store knows of their ticks."""

    def __init__(self, url: str, folder: Path, schedules: int) -> None:
        self.app = Umbel(url, namespace="scenario", backlog="none")
        asyncio.run(self.app.backend.migrate())
        self.workers = Workers(
            url,
            folder,
            *("--queues", "idle", "--cpu", "1"),
            application="scheduled_tasks",
            env={"SCHEDULES": str(schedules)},
        )
        self._runner = asyncio.Runner()
        self._roles = self.app.backend.open()

    def leader(self) -> int | None:
        """Return the index of the worker that leads."""
        election = Election(self._roles.coordination, "scheduler", "test", seconds=1)
        found = self._runner.run(election.leader())
        return None if found is None else int(found.rpartition("-")[2])

    def ticks(self) -> list[tuple[str, int, str, float]]:
        """Return schedule, nominal time, id and lateness of all jobs."""
        wanted = JobFilter(queue="ticks", limit=1_000_000)
        return [
            (
                one.headers["schedule"],
                int(one.headers["nominaltime"]),
                one.id,
                one.created - int(one.headers["nominaltime"]),
            )
            for one in self._runner.run(self._roles.records.search(wanted))
        ]

    def newest(self) -> int:
        """Return the newest nominal time; 0 if there is none."""
        found = self._runner.run(
            self._roles.records.search(JobFilter(queue="ticks", limit=SCHEDULES))
        )
        return max((int(one.headers["nominaltime"]) for one in found), default=0)

    def wait_for(self, nominal: int) -> None:
        """Wait until the ticks of this time are published, and there is a leader."""
        until(lambda: self.newest() >= nominal, f"ticks of {nominal}")
        until(lambda: self.leader() is not None, "a leader")

    def check(self, schedules: int, last: int) -> list[float]:
        """Return how late the ticks were, once each of them was found exactly once."""
        ticks = self.ticks()
        times: dict[str, list[int]] = {}
        for schedule, nominal, job, _ in ticks:
            assert job == tick_id("scenario", schedule, nominal)
            times.setdefault(schedule, []).append(nominal)
        assert len(times) == schedules
        for schedule, found in times.items():
            found = sorted(one for one in found if one <= last)
            assert found == [*range(found[0], last + 1)], f"{schedule}: ticks missing or twice"
        return [late for _, nominal, _, late in ticks if nominal <= last]

    def end(self) -> None:
        self.workers.end()
        self._runner.run(self._roles.close())
        self._runner.close()
        self.app.close()


@pytest.fixture
def cluster(url: str, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(url, tmp_path, SCHEDULES)
    try:
        yield made
    finally:
        made.end()


@pytest.mark.parametrize("url", BACKENDS, indirect=True)
def test_each_tick_is_published_once_while_leaders_are_killed(
    cluster: Cluster, url: str, capsys: Any
) -> None:
    workers = cluster.workers
    for index in range(3):
        workers.start(index)
    cluster.wait_for(1)
    first, kills = cluster.newest(), 0
    for start in range(first, first + SECONDS, KILL_INTERVAL):
        cluster.wait_for(start + 3)
        leader = cluster.leader()
        assert leader is not None
        workers.kill(leader)
        workers.start(leader)
        kills += 1
        cluster.wait_for(min(start + KILL_INTERVAL, first + SECONDS))
    late = sorted(cluster.check(SCHEDULES, first + SECONDS))
    with capsys.disabled():
        print(
            f"\n  {url.partition(':')[0]}: {len(late):,} ticks of {SCHEDULES} schedules, each once;"
            f" leader killed {kills} times; late: half {late[len(late) // 2]:.2f} s,"
            f" worst {late[-1]:.2f} s (lease {LEASE_SECONDS:g} s)"
        )


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_leader_that_was_frozen_past_its_lease_changes_nothing_when_it_resumes(
    cluster: Cluster,
) -> None:
    workers = cluster.workers
    for index in range(2):
        workers.start(index)
    cluster.wait_for(1)
    frozen = cluster.leader()
    assert frozen is not None
    workers.signal(frozen, signal.SIGSTOP)
    try:
        until(lambda: cluster.leader() not in (None, frozen), "another leader")
        before = cluster.newest()
        until(lambda: cluster.newest() > before, "ticks of the other leader")
    finally:
        workers.signal(frozen, signal.SIGCONT)
    resumed = int(time.time())
    until(lambda: cluster.newest() >= resumed + 5, "ticks after the leader has resumed")
    cluster.check(SCHEDULES, resumed + 4)
    assert cluster.leader() != frozen


def test_after_an_outage_of_the_store_no_tick_is_missing(
    server: PrivatePostgres, tmp_path: Path
) -> None:
    cluster = Cluster(server.url, tmp_path, 20)
    try:
        for index in range(2):
            cluster.workers.start(index)
        until(lambda: cluster.newest() > 0, "the first tick")
        server.stop()
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 3, "the outage")
        server.start()
        restarted = int(time.time())

        def has_caught_up() -> bool:
            try:
                return cluster.newest() >= restarted + 2
            except Exception:
                return False  # the connection of this process was cut, too

        until(has_caught_up, "ticks after the outage")
        cluster.check(20, restarted + 1)
    finally:
        cluster.end()
