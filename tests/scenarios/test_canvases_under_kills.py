"""Workers are killed, and the store is restarted, while canvases run: every graph ends rightly.

UMBEL_CANVAS_STORM sets the number of graphs; 300 is the full storm, of graphs with up to 200 nodes.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from canvas_tasks import declare, random_canvas
from processes import Workers, until
from scenario_client import Client

from umbel import Handle, State, Umbel

GRAPHS = int(os.environ.get("UMBEL_CANVAS_STORM", "6"))
IS_FULL = GRAPHS >= 100
LARGEST = 200 if IS_FULL else 30
SECONDS_BETWEEN_KILLS = 5.0 if IS_FULL else 0.7
MAX_KILLS = 60 if IS_FULL else 8
"""After so many, what remains can end: jobs whose workers died often come back later and later."""
WORKERS = 2


class Killer:
    """Kills one worker after the other, each when all are running, until it is ended.

    Like a supervisor, it starts workers again that have exited because the store was restarted.
    """

    def __init__(self, workers: Workers) -> None:
        self.kills = 0
        self._workers = workers
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._kill_in_turn)

    def __enter__(self) -> Killer:
        for index in range(WORKERS):
            self._workers.start(index)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _kill_in_turn(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_KILLS):
            for index in range(WORKERS):
                if self._workers.has_ended(index):
                    self._workers.start(index)
            # On a busy machine, workers that are killed while they start would never run a node.
            if self.kills == MAX_KILLS or self._workers.started() < WORKERS + self.kills:
                continue
            victim = self.kills % WORKERS
            self._workers.kill(victim)
            self._workers.start(victim)
            self.kills += 1


@pytest.fixture
def app(url: str, client: Client) -> Iterator[Umbel]:
    broker, _, store = url.partition("|")
    given: dict[str, Any] = {"store": store} if store else {}
    app = Umbel(broker, namespace="scenario", deadline=60.0, backlog="none", **given)
    yield app
    app.close()


@pytest.fixture
def workers(url: str, tmp_path: Path) -> Iterator[Workers]:
    options = ("--io", "20", "--lease", "2")
    workers = Workers(url, tmp_path, *options, application="canvas_tasks")
    yield workers
    workers.end()


@pytest.mark.slow
def test_every_graph_ends_and_every_node_is_recorded_once_whatever_is_killed(
    request: pytest.FixtureRequest, url: str, app: Umbel, client: Client, workers: Workers
) -> None:
    tasks, chosen = declare(app), random.Random(24)
    published: list[tuple[Handle[Any], int | None]] = []
    begun = time.monotonic()
    with Killer(workers) as killer:
        for number in range(GRAPHS):
            canvas, wanted = random_canvas(tasks, chosen.randint(1, LARGEST), chosen)
            published.append((canvas.delay(), wanted))
            if number == GRAPHS // 2 and url.startswith("postgresql"):
                server = request.getfixturevalue("server")
                server.stop("immediate")
                server.start()
        for handle, _ in published:
            until(lambda h=handle: h.state.finished, f"graph {handle.id}", 600)  # type: ignore[misc]
        until(lambda: client.unfinished() == 0, "all nodes to end", seconds=300)
    took = time.monotonic() - begun
    for handle, wanted in published:
        if wanted is None:
            assert handle.state is State.BURIED
        else:
            assert handle.get(60) == wanted
    nodes = [record for record in client.records() if not record.task.startswith("umbel.")]
    assert len({record.id for record in nodes}) == len(nodes)
    for record in nodes:
        ends = Counter(one.ended for one in record.attempts)
        if record.state is State.SUCCEEDED:
            assert ends["succeeded"] == 1, record
    ends = Counter(one.ended for record in nodes for one in record.attempts)
    print(f"{GRAPHS} graphs, {len(nodes)} nodes, {killer.kills} kills, {took:.0f} s: {dict(ends)}")
