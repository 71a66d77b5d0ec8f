"""A new file that several open in the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from umbel.clock import SystemClock
from umbel.drivers.sqlite import Home
from umbel.publisher.backlogs.sqlite import SqliteBacklog

CROWD = 4
FILES = 60


def open_store(path: Path) -> None:
    Home(str(path)).connect(10.0).close()


def open_backlog(path: Path) -> None:
    backlog = SqliteBacklog(str(path), "umbel", SystemClock(), limit=10, busy=10.0)
    assert backlog.oldest(1) == []
    backlog.close()


@pytest.mark.parametrize("opening", [open_store, open_backlog])
def test_all_who_open_a_new_file_at_once_have_it(
    tmp_path: Path, opening: Callable[[Path], Any]
) -> None:
    together = threading.Barrier(CROWD)

    def open_each(_: int) -> None:
        for number in range(FILES):
            together.wait(30)
            opening(tmp_path / f"{number}.db")

    with ThreadPoolExecutor(CROWD) as crowd:
        list(crowd.map(open_each, range(CROWD)))
