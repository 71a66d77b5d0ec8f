"""A message that another program sends twice runs once, and the second one is reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from integration.backends import opened
from integration.conftest import working
from integration.running import DEADLINE, Gauge, Heard, Signal, until
from umbel import Retry, Umbel, current
from umbel.messages import State, fresh_id
from umbel.telemetry import events

pika = pytest.importorskip("pika")


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Umbel]:
    with opened("rabbitmq+postgres", tmp_path) as (place, _):
        app = Umbel(
            place.broker, store=place.store, namespace=place.namespace, deadline=20, backlog="none"
        )
        with closing(app):
            yield app


def sender(app: Umbel) -> Callable[[dict[str, Any]], None]:
    """Sends CloudEvents as a program without Umbel does, to the queue that a worker has made."""
    url, queue = app.settings.broker, f"{app.settings.namespace}.default.any"

    def has_queue() -> bool:
        try:
            with pika.BlockingConnection(pika.URLParameters(url)) as connection:
                connection.channel().queue_declare(queue, passive=True)
        except pika.exceptions.ChannelClosedByBroker:
            return False
        return True

    def send(event: dict[str, Any]) -> None:
        kind = pika.BasicProperties(content_type="application/cloudevents+json")
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish("", queue, json.dumps(event).encode(), kind, mandatory=True)

    until(has_queue, "the queue")
    return send


def command(task: str) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": fresh_id(),
        "type": "umbel.command",
        "source": "/shop/checkout",
        "subject": task,
        "data": {"args": []},
    }


def test_a_message_that_is_sent_again_is_reported_each_time(app: Umbel) -> None:
    heard, ran, go = Heard(app), Gauge(), Signal("the end")

    @app.task(name="work")
    async def work() -> None:
        with ran:
            await go.seen()

    with working(app):
        send, event = sender(app), command("work")
        send(event)
        until(lambda: ran.entered == 1, "the first run")
        send(event)
        first = heard.wait(events.DuplicateDiscarded)
        assert (first.job, first.task, first.attempt) == (event["id"], "work", 1)
        go.set()
        handle = app.handle(event["id"])
        handle.get(timeout=DEADLINE)
        send(event)
        heard.wait(events.DuplicateDiscarded, count=2)
    assert ran.entered == 1
    assert handle.state is State.SUCCEEDED


def test_copies_that_relays_of_several_workers_send_are_not_reported(app: Umbel) -> None:
    heard = Heard(app)

    @app.task(name="work", retry=Retry(2, first=0.1))
    async def work() -> int:
        if current.job.attempt == 1:
            raise ValueError("once more")
        return current.job.attempt

    with working(app), working(app), working(app):
        handles = app.publish_many([work.s() for _ in range(20)])
        assert [handle.get(timeout=DEADLINE) for handle in handles] == [2] * 20
    assert heard.all(events.DuplicateDiscarded) == []
