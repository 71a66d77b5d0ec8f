"""Declarations and calls that do not do what they seem to do are reported with the remedy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from integration.backends import opened
from integration.command_line import Shell
from integration.conftest import working
from integration.running import DEADLINE, Heard
from umbel import Limit, Rate, Umbel
from umbel.telemetry import events


@pytest.fixture
def app() -> Iterator[Umbel]:
    with closing(Umbel("sqlite:///:memory:")) as app:
        yield app


# --- a rate that voids a limit ----------------------------------------------------------------


def test_a_worker_reports_all_limits_without_effect_once(app: Umbel) -> None:
    heard = Heard(app)
    app.queue("letters", limit=3, rate="1/s")

    @app.task(name="mail", rate="200/m", limit=5)
    def mail() -> None: ...

    @app.task(name="fax", rate=Rate("10/s", per="worker"), limit=Limit(1, per="worker"))
    def fax() -> None: ...

    with working(app):
        fax.delay().get(timeout=DEADLINE)
    (event,) = heard.all(events.LimitIgnored)
    assert sorted(event.owners) == ["@letters", "fax", "mail"]
    assert "app.queue(name, limit=...)" in event.text


def test_only_commands_that_run_jobs_warn_of_limits_without_effect(shell: Shell) -> None:
    code = shell.folder / "tasks.py"
    code.write_text(f"{code.read_text()}\n@app.task(rate='1/s', limit=2)\ndef both(): ...\n")
    done = shell.run("tasks")
    assert (done.returncode, done.stderr) == (0, "")
    with shell.worker() as worker:
        assert json.loads(worker.wait_for("limits have no effect"))["owners"] == ["tasks.both"]


def test_the_rate_of_a_task_and_the_limit_of_its_queue_both_apply(app: Umbel) -> None:
    heard = Heard(app)
    app.queue("mail", limit=3)

    @app.task(queue="mail", rate="1/s")
    def paced() -> None: ...

    @app.task(limit=4)
    def limited() -> None: ...

    with working(app):
        limited.delay().get(timeout=DEADLINE)
    assert heard.all(events.LimitIgnored) == []


# --- a priority that the broker ignores -------------------------------------------------------


def test_a_priority_that_the_broker_ignores_is_reported_once(tmp_path: Path) -> None:
    with opened("nats+sqlite", tmp_path) as (place, _):
        app = Umbel(
            place.broker, store=place.store, namespace=place.namespace, deadline=20, backlog="none"
        )
        with closing(app):
            heard = Heard(app)

            @app.task(name="report")
            def report() -> None: ...

            report.delay()
            assert heard.all(events.PriorityIgnored) == []
            app.publish_many([report.s(), report.options(priority=7).s()])
            report.options(priority=3).delay()
            (event,) = heard.all(events.PriorityIgnored)
            assert (event.task, event.priority) == ("report", 7)
            assert "name it first in --queues" in event.text


def test_the_priority_of_a_queue_that_stays_in_the_store_is_not_reported(tmp_path: Path) -> None:
    with opened("nats+sqlite", tmp_path) as (place, _):
        app = Umbel(
            place.store,
            brokers={"carried": place.broker},
            namespace=place.namespace,
            deadline=20,
            backlog="none",
        )
        with closing(app):
            heard = Heard(app)

            @app.task
            def report() -> None: ...

            report.options(priority=7).delay()
            assert heard.all(events.PriorityIgnored) == []
            report.options(priority=7, queue="carried").delay()
            assert len(heard.all(events.PriorityIgnored)) == 1


def test_a_broker_that_respects_priorities_is_not_reported(app: Umbel) -> None:
    heard = Heard(app)

    @app.task(priority=5)
    def report() -> None: ...

    report.delay()
    assert heard.all(events.PriorityIgnored) == []
