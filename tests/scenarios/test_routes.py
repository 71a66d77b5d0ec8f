"""A plan stays on one worker, whichever process publishes or dies, and no job is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from processes import HERE, Workers, until
from scenario_client import Client

from umbel.backends import JobFilter, Route

PLANS = int(os.environ.get("UMBEL_PLANS", "24"))
PUBLISHERS = int(os.environ.get("UMBEL_PLAN_PUBLISHERS", "3"))
PARTS = 3
WORKER_COUNT = 4
EXAMPLE = HERE.parents[1] / "examples" / "plans"

PUBLISH = """
import sys, plans
for number in range(int(sys.argv[1]), int(sys.argv[2])):
    plan = f"plan-{number}"
    plans.prepare.delay(plan)
    for part in range(int(sys.argv[3])):
        plans.compute.delay(plan, part)
    plans.finish.delay(plan)
"""


class PlanWorkers(Workers):
    """Workers of the example in examples/plans, each with its own folder, and publishers."""

    def __init__(self, url: str, folder: Path) -> None:
        self.plans = folder / "plans"
        options = ("--lease", "2", "--cpu", "4", "--log-format", "json")
        super().__init__(
            url,
            folder,
            *options,
            application="plans",
            path=[EXAMPLE],
            env={"PLANS": str(self.plans), "UMBEL_DEADLINE": "60"},
        )

    def start(self, index: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "umbel", "-A", "plans:app", "worker"]
        process = subprocess.Popen(
            [*command, "--name", "plans", "--index", str(index), *self._options],
            env=self._environment,
            stdout=self.log,
            stderr=self.log,
        )
        self._processes[index] = process
        return process

    def publish(self, first: int, end: int) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", PUBLISH, str(first), str(end), str(PARTS)]
        return subprocess.Popen(words, env=self._environment, stdout=self.log, stderr=self.log)

    def journal(self) -> list[dict[str, Any]]:
        files = self.plans.glob("journal-*.jsonl")
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.fixture
def workers(url: str, tmp_path: Path) -> Iterator[PlanWorkers]:
    workers = PlanWorkers(url, tmp_path)
    yield workers
    workers.end()


def live(client: Client) -> int:
    return client.unfinished()


def routes(client: Client) -> list[Route]:
    """Return all routes that ever existed, the oldest first."""
    found = client.ask(lambda operations: operations.routes(live=False, limit=100_000))
    return sorted(found, key=lambda route: route.number)


def check_routes(made: list[Route]) -> None:
    """Check that no key was live on two workers, and that each went to the least loaded worker."""
    for key in {route.key for route in made}:
        own = [route for route in made if route.key == key]
        for before, after in pairwise(own):
            assert before.released is not None, (before, after)
            assert before.released <= after.made, (before, after)
    for route in made:
        if not route.why.startswith("moved"):
            least = min(route.among, key=lambda found: (found[1], found[0]))
            assert route.index == least[0], route


def check_journal(workers: PlanWorkers, made: list[Route]) -> None:
    """Check from the tasks' logs that each ran on the worker that had its plan at that time."""
    where = {route.number: route.index for route in made}
    for note in workers.journal():
        assert where[note["route"]] == note["worker"], note
    for plan in {note["plan"] for note in workers.journal()}:
        notes = [note for note in workers.journal() if note["plan"] == plan]
        ends = [(n["route"], n["ended"]) for n in notes if "ended" in n]
        begins = [(n["route"], n["began"]) for n in notes if "began" in n]
        for route, began in begins:
            assert all(ended <= began for earlier, ended in ends if earlier < route), plan


def check_jobs(client: Client, plans: int) -> int:
    """Check that all jobs succeeded. Return how many clean-ups found no route."""
    records = client.ask(lambda operations: operations.jobs(JobFilter(limit=100_000)))
    assert len(records) == plans * (PARTS + 2)
    for record in records:
        skipped = record.state == "cancelled" and record.task.endswith("finish")
        assert record.state == "succeeded" or skipped, (record.task, record.reason)
    return sum(record.state == "cancelled" for record in records)


def test_no_plan_is_ever_live_on_two_workers(
    client: Client, workers: PlanWorkers, capsys: pytest.CaptureFixture[str]
) -> None:
    for index in range(WORKER_COUNT):
        workers.start(index)
    until(lambda: len(client.workers()) == WORKER_COUNT, "all workers to register")
    share = PLANS // PUBLISHERS
    publishing = [workers.publish(n * share, (n + 1) * share) for n in range(PUBLISHERS)]
    kills = 0

    def done_or_disturb() -> bool:
        nonlocal kills
        if all(one.poll() is not None for one in publishing) and live(client) == 0:
            return True
        workers.kill(kills % WORKER_COUNT)
        if kills % 3 == 2:
            time.sleep(3)  # longer than a lease: its plans go elsewhere
        workers.start(kills % WORKER_COUNT)
        kills += 1
        return False

    until(done_or_disturb, "all plans to finish", seconds=600, every=1.0)
    assert [one.returncode for one in publishing] == [0] * PUBLISHERS
    made = routes(client)
    check_routes(made)
    check_journal(workers, made)
    skipped = check_jobs(client, share * PUBLISHERS)
    with capsys.disabled():
        lost = sum("gone" in route.why for route in made)
        print(
            f"\n  {client.url.split(':')[0]}: {share * PUBLISHERS} plans, {kills} kills:", end=" "
        )
        print(f"{len(made)} routes, {lost} of them lost with a worker, {skipped} clean-ups skipped")
    assert "Astray" not in workers.output()


def test_workers_come_and_go_while_plans_run(client: Client, workers: PlanWorkers) -> None:
    for index in range(WORKER_COUNT):
        workers.start(index)
    until(lambda: len(client.workers()) == WORKER_COUNT, "all workers to register")
    publishing = workers.publish(0, PLANS)
    until(lambda: len(routes(client)) > WORKER_COUNT, "plans on every worker")
    for index in (3, 2):
        client.ask(lambda operations, index=index: operations.retire(index))
    until(
        lambda: all(not s.routes for s in worker_indexes(client) if s.index > 1),
        "the routes to move",
    )
    for index in (3, 2):
        workers.process(index).terminate()
        assert workers.process(index).wait(60) == 0
    for index in (2, 3):
        workers.start(index)
    until(lambda: publishing.poll() is not None and live(client) == 0, "all plans to finish")
    made = routes(client)
    check_routes(made)
    check_journal(workers, made)
    check_jobs(client, PLANS)
    # With few plans the higher indexes are idle. A job that was returned may have created a route
    # again after its plan was finished.
    for route in made:
        client.ask(lambda operations, key=route.key: operations.release(key, "left over"))
    few = workers.publish(PLANS, PLANS + 2)
    until(lambda: few.poll() is not None and live(client) == 0, "two more plans to finish")
    assert {route.index for route in routes(client)[len(made) :]} <= {0, 1}


def worker_indexes(client: Client) -> list[Any]:
    found: list[Any] = client.ask(lambda operations: operations.worker_indexes())
    return found
