"""Declarations and calls that do not do what they seem to do are reported with the remedy."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from integration.backends import opened
from integration.running import Heard
from umbel import Limit, Rate, Umbel
from umbel.telemetry import events


@pytest.fixture
def app() -> Iterator[Umbel]:
    with closing(Umbel("sqlite:///:memory:")) as app:
        yield app


# --- a rate that voids a limit ----------------------------------------------------------------


def test_a_task_with_a_rate_and_a_limit_is_reported_when_it_is_declared(app: Umbel) -> None:
    heard = Heard(app)

    @app.task(name="mail", rate="200/m", limit=5)
    def mail() -> None: ...

    (event,) = heard.all(events.LimitIgnored)
    assert event.owner == "mail"
    assert "app.queue(name, limit=...)" in event.text


def test_a_limit_of_each_worker_is_reported_too(app: Umbel) -> None:
    heard = Heard(app)

    @app.task(name="mail", rate=Rate("10/s", per="worker"), limit=Limit(1, per="worker"))
    def mail() -> None: ...

    assert [one.owner for one in heard.all(events.LimitIgnored)] == ["mail"]


def test_a_queue_with_a_rate_and_a_limit_is_reported(app: Umbel) -> None:
    heard = Heard(app)
    app.queue("mail", limit=3, rate="1/s")
    assert [one.owner for one in heard.all(events.LimitIgnored)] == ["@mail"]


def test_the_rate_of_a_task_and_the_limit_of_its_queue_both_apply(app: Umbel) -> None:
    heard = Heard(app)
    app.queue("mail", limit=3)

    @app.task(queue="mail", rate="1/s")
    def paced() -> None: ...

    @app.task(limit=4)
    def limited() -> None: ...

    assert heard.all(events.LimitIgnored) == []


def test_without_a_subscriber_the_warning_is_in_the_programs_own_log(
    app: Umbel, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "umbel"):

        @app.task(name="mail", rate="200/m", limit=5)
        def mail() -> None: ...

    (line,) = caplog.messages
    assert line.startswith("a limit has no effect")
    assert "owner='mail'" in line


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
