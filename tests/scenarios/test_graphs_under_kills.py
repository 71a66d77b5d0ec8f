"""Publishers, workers and leaders are killed while graphs and ticks are under way.

Whatever is killed: a graph that was sealed ends completely; no job starts before what it waits for
has ended; a job whose join did not fire is cancelled; each tick is published once, without gaps.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from graph_tasks import CURSOR, TICKS
from processes import HERE, Workers, until
from scenario_client import Client

from umbel.messages import PartResult, Record, State

KILLS = int(os.environ.get("UMBEL_GRAPH_KILLS", "8"))
GRAPHS = 2 * KILLS
"""Processes are killed until so many graphs were published completely."""
WORKERS = 2
PROGRAMS = {
    "publisher": ("publish", "published"),
    "leader 1": ("tick", "1"),
    "leader 2": ("tick", "2"),
}


class Programs:
    """The publisher and the candidates, started, killed and started again."""

    def __init__(self, url: str, folder: Path) -> None:
        self.log = folder / "published"
        broker, _, store = url.partition("|")
        self._environment = {
            **os.environ,
            "UMBEL_BROKER": broker,
            **({"UMBEL_STORE": store} if store else {}),
            "PYTHONPATH": str(HERE),
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        command, argument = PROGRAMS[name]
        argument = str(self.log) if command == "publish" else argument
        self._processes[name] = subprocess.Popen(
            [sys.executable, str(HERE / "graph_tasks.py"), command, argument],
            env=self._environment,
        )

    def kill(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()

    def lines(self) -> list[dict[str, Any]]:
        text = self.log.read_text() if self.log.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def sealed(self) -> set[str]:
        """Return the groups of the graphs that were published completely."""
        return {line["sealed"] for line in self.lines() if "sealed" in line}

    def end(self) -> None:
        for name in self._processes:
            self.kill(name)


@pytest.fixture
def programs(url: str, client: Client, tmp_path: Path) -> Iterator[Programs]:
    asyncio.run(client.app.backend.migrate())
    programs = Programs(url, tmp_path)
    yield programs
    programs.end()


@pytest.fixture
def workers(url: str, tmp_path: Path) -> Iterator[Workers]:
    options = ("--io", "20", "--lease", "2")
    workers = Workers(url, tmp_path, *options, application="graph_tasks")
    yield workers
    workers.end()


@pytest.mark.slow
def test_graphs_end_and_ticks_are_published_once_whatever_is_killed(
    client: Client, programs: Programs, workers: Workers
) -> None:
    for index in range(WORKERS):
        workers.start(index)
    for name in PROGRAMS:
        programs.start(name)
    kill_at_random(programs, workers)
    programs.end()
    abandon_unsealed(client)
    until(lambda: client.unfinished() == 0, "all jobs to end", seconds=180)
    check_graphs(client, programs.lines())
    check_ticks(client)


def kill_at_random(programs: Programs, workers: Workers) -> None:
    """Kill and start again, each time after a few more graphs, however busy the machine is."""
    chosen, victims, kills = random.Random(7), [*PROGRAMS, *range(WORKERS)], 0
    while kills < KILLS or len(programs.sealed()) < GRAPHS:
        wanted = len(programs.sealed()) + chosen.randint(1, 3)
        until(lambda: len(programs.sealed()) >= wanted, "more graphs")  # noqa: B023
        time.sleep(chosen.random() / 5)  # at any moment between two graphs
        victim, kills = chosen.choice(victims), kills + 1
        if isinstance(victim, int):
            workers.kill(victim)
            workers.start(victim)
        else:
            programs.kill(victim)
            programs.start(victim)


def abandon_unsealed(client: Client) -> None:
    """Abandon the graphs whose publisher died, as a worker does after an hour."""

    async def sweep() -> None:
        roles = client.app.backend.open()
        try:
            while await roles.joins.sweep(0.0):
                pass
        finally:
            await roles.close()

    asyncio.run(sweep())


def check_graphs(client: Client, lines: list[dict[str, Any]]) -> None:
    begun = {line["begun"]["group"]: line["begun"] for line in lines if "begun" in line}
    sealed = {line["sealed"] for line in lines if "sealed" in line}
    assert len(sealed) >= GRAPHS
    records = {record.id: record for record in client.records()}
    results = join_results(client, begun)
    for group, graph in begun.items():
        for chunk in graph["jobs"]:
            known = [job for job in chunk if job in records]
            assert known in ([], chunk), f"a part of a chunk of {group} was published"
            assert group not in sealed or known, f"{group} was published, and a job is missing"
        for job, join in graph["waits"].items():
            if job in records and group in sealed:
                check_wait(records[job], graph["joins"][join], results[join], records)
    assert all(drop_groups(client, begun)), "a graph that has ended cannot be dropped"


def check_wait(
    record: Record, join: list[Any], results: list[PartResult], records: dict[str, Record]
) -> None:
    """Check a job against the parts of its join."""
    fire, parts = join
    assert [result.job for result in results] == parts
    assert all(result.state.finished for result in results), f"{record.id}: a part has not ended"
    failed = any(result.state is not State.SUCCEEDED for result in results)
    fires = fire == "all" or failed == (fire == "failure")
    assert (record.state is not State.CANCELLED) == fires, f"{record.id}: {record.reason}"
    for part in parts:
        ended = records[part].finished or 0.0
        # A lost attempt has the time of its claim, which SQLite takes before it waits for the file.
        started = [one.started for one in record.attempts if one.ended != "lost"]
        assert all(one >= ended - 0.001 for one in started), (
            f"{record.id} started before its part {part} had ended"
        )


def join_results(client: Client, graphs: dict[str, Any]) -> dict[str, list[PartResult]]:
    async def read() -> dict[str, list[PartResult]]:
        roles = client.app.backend.open()
        try:
            joins = [join for graph in graphs.values() for join in graph["joins"]]
            return {join: await roles.joins.results(join) for join in joins}
        finally:
            await roles.close()

    return asyncio.run(read())


def drop_groups(client: Client, graphs: dict[str, Any]) -> list[bool]:
    async def drop() -> list[bool]:
        roles = client.app.backend.open()
        try:
            return [await roles.joins.drop(group) for group in graphs]
        finally:
            await roles.close()

    return asyncio.run(drop())


def check_ticks(client: Client) -> None:
    async def read_cursor() -> int:
        roles = client.app.backend.open()
        try:
            return int((await roles.coordination.read(CURSOR)).entries[0].value)
        finally:
            await roles.close()

    cursor = asyncio.run(read_cursor())
    ticks = {record.id for record in client.records() if record.task == "tick"}
    assert ticks == {str(uuid.uuid5(TICKS, str(number))) for number in range(1, cursor + 1)}
    assert cursor > KILLS, "too few ticks were published to show anything"
