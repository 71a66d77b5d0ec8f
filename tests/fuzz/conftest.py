"""A bench on each kind of database, for all tests that write rows by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bench import Bench, bench


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """On a SQLite file."""
    with bench("file", tmp_path_factory.mktemp("rows")) as made:
        yield made


@pytest.fixture(scope="module")
def postgres() -> Iterator[Bench]:
    """On PostgreSQL. Skips without a server."""
    with bench("postgres", Path()) as made:
        yield made
