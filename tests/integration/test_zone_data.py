"""Hosts with different time zone data: schedules may fire at different times there."""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.running import ask, ask_backend, working
from umbel import Umbel
from umbel.backends import WorkerEntry
from umbel.schedules.zones import zone_data_version


@pytest.fixture
def own_folder(tmp_path: Path) -> Iterator[Path]:
    zone_data_version.cache_clear()
    zoneinfo.reset_tzpath(to=[str(tmp_path)])
    yield tmp_path
    zoneinfo.reset_tzpath()
    zone_data_version.cache_clear()


def test_the_version_is_that_of_the_data_that_is_used(own_folder: Path) -> None:
    packaged = zone_data_version()
    assert packaged[:2] == "20"
    (own_folder / "UTC").write_bytes(b"")
    zone_data_version.cache_clear()
    assert zone_data_version() == ""
    (own_folder / "tzdata.zi").write_text("# version 2031c\n# ddeps\n")
    zone_data_version.cache_clear()
    assert zone_data_version() == "2031c"


def test_health_warns_of_workers_with_different_data(tmp_path: Path) -> None:
    app = Umbel(f"sqlite:///{tmp_path}/umbel.db")

    @app.task(name="one")
    def one() -> None: ...

    entry = WorkerEntry(
        incarnation="other",
        name="other",
        host="far",
        pid=1,
        queues=("default",),
        capacity={"io": 1},
        lease=60,
        zone_data="1999z",
    )
    with working(app, name="here"):
        assert "zones" not in ask(app, lambda o: o.health()).checks
        ask_backend(app, lambda roles: roles.registry.register(entry))
        health = ask(app, lambda o: o.health())
        assert health.ok
        assert "1999z on far" in health.checks["zones"]
        assert f"{zone_data_version()} on " in health.checks["zones"]
    app.close()
