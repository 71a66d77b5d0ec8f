"""Plans stay on one worker, whoever publishes and whichever worker dies; and nothing is lost."""

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
from desk import Client
from processes import HERE, Workers, until

from umbel.backends import JobFilter, Route

PLANS = int(os.environ.get("UMBEL_PLANS", "24"))
PUBLISHERS = int(os.environ.get("UMBEL_PLAN_PUBLISHERS", "3"))
PARTS = 3
CREW = 4
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


class Company(Workers):
    """Workers of the example in examples/plans, each with a folder of its own, and publishers."""

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
def company(url: str, tmp_path: Path) -> Iterator[Company]:
    company = Company(url, tmp_path)
    yield company
    company.end()


def live(desk: Client) -> int:
    return sum(
        depth.jobs for depth in desk.ask(lambda operations: operations._roles.broker.depths())
    )


def routes(desk: Client) -> list[Route]:
    """All there ever were, the oldest first."""
    found = desk.ask(lambda operations: operations.routes(live=False, limit=100_000))
    return sorted(found, key=lambda route: route.number)


def check_routes(made: list[Route]) -> None:
    """No key was live on two workers; and each choice was the fewest, then the lowest index."""
    for key in {route.key for route in made}:
        own = [route for route in made if route.key == key]
        for before, after in pairwise(own):
            assert before.released is not None, (before, after)
            assert before.released <= after.made, (before, after)
    for route in made:
        if not route.why.startswith("moved"):
            least = min(route.among, key=lambda found: (found[1], found[0]))
            assert route.index == least[0], route


def check_journal(company: Company, made: list[Route]) -> None:
    """Every task ran on the worker that had its plan at that moment, as the tasks tell it."""
    where = {route.number: route.index for route in made}
    for note in company.journal():
        assert where[note["route"]] == note["worker"], note
    for plan in {note["plan"] for note in company.journal()}:
        notes = [note for note in company.journal() if note["plan"] == plan]
        ends = [(n["route"], n["ended"]) for n in notes if "ended" in n]
        begins = [(n["route"], n["began"]) for n in notes if "began" in n]
        for route, began in begins:
            assert all(ended <= began for earlier, ended in ends if earlier < route), plan


def check_jobs(desk: Client, plans: int) -> int:
    """Everything is done, nothing went astray. Returns how many clean-ups found no route."""
    records = desk.ask(lambda operations: operations.jobs(JobFilter(limit=100_000)))
    assert len(records) == plans * (PARTS + 2)
    for record in records:
        skipped = record.state == "cancelled" and record.task.endswith("finish")
        assert record.state == "succeeded" or skipped, (record.task, record.reason)
    return sum(record.state == "cancelled" for record in records)


def test_no_plan_is_ever_live_on_two_workers(
    desk: Client, company: Company, capsys: pytest.CaptureFixture[str]
) -> None:
    for index in range(CREW):
        company.start(index)
    until(lambda: len(desk.workers()) == CREW, "the crew to register")
    share = PLANS // PUBLISHERS
    publishing = [company.publish(n * share, (n + 1) * share) for n in range(PUBLISHERS)]
    kills = 0

    def done_or_disturb() -> bool:
        nonlocal kills
        if all(one.poll() is not None for one in publishing) and live(desk) == 0:
            return True
        company.kill(kills % CREW)
        if kills % 3 == 2:
            time.sleep(3)  # longer than a lease: its plans go elsewhere
        company.start(kills % CREW)
        kills += 1
        return False

    until(done_or_disturb, "all plans to finish", seconds=600, every=1.0)
    assert [one.returncode for one in publishing] == [0] * PUBLISHERS
    made = routes(desk)
    check_routes(made)
    check_journal(company, made)
    skipped = check_jobs(desk, share * PUBLISHERS)
    with capsys.disabled():
        lost = sum("gone" in route.why for route in made)
        print(f"\n  {desk.url.split(':')[0]}: {share * PUBLISHERS} plans, {kills} kills:", end=" ")
        print(f"{len(made)} routes, {lost} of them lost with a worker, {skipped} clean-ups skipped")
    assert "Astray" not in company.said()


def test_workers_come_and_go_while_plans_run(desk: Client, company: Company) -> None:
    for index in range(CREW):
        company.start(index)
    until(lambda: len(desk.workers()) == CREW, "the crew to register")
    publishing = company.publish(0, PLANS)
    until(lambda: len(routes(desk)) > CREW, "plans on every worker")
    for index in (3, 2):
        desk.ask(lambda operations, index=index: operations.retire(index))
    until(
        lambda: all(not s.routes for s in worker_indexes(desk) if s.index > 1), "the routes to move"
    )
    for index in (3, 2):
        company.process(index).terminate()
        assert company.process(index).wait(60) == 0
    for index in (2, 3):
        company.start(index)
    until(lambda: publishing.poll() is not None and live(desk) == 0, "all plans to finish")
    made = routes(desk)
    check_routes(made)
    check_journal(company, made)
    check_jobs(desk, PLANS)
    # With few plans the higher indexes are idle. A job that was put back may have made a route
    # anew after its plan was finished.
    for route in made:
        desk.ask(lambda operations, key=route.key: operations.release(key, "left over"))
    few = company.publish(PLANS, PLANS + 2)
    until(lambda: few.poll() is not None and live(desk) == 0, "two more plans to finish")
    assert {route.index for route in routes(desk)[len(made) :]} <= {0, 1}


def worker_indexes(desk: Client) -> list[Any]:
    found: list[Any] = desk.ask(lambda operations: operations.worker_indexes())
    return found
