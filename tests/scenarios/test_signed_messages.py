"""Whoever can publish cannot command a worker: what nobody trusted has signed is never run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from integration.conftest import working
from integration.running import until
from umbel import State, Umbel
from umbel.clock import SystemClock
from umbel.errors import UnknownJob
from umbel.keys import SIGNATURE_HEADER, Keyring, sign_envelope
from umbel.messages import Body, Envelope, fresh_id
from umbel.operations import Operations
from umbel.telemetry import events

EXAMPLES = int(os.environ.get("UMBEL_INBOX_EXAMPLES", "60"))
STRANGER = Keyring().with_new(datetime(2020, 1, 1, tzinfo=UTC))


class Watch(SystemClock):
    """It can be put forward."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


class Office:
    """An application with keys, tasks that tell what ran, and messages to its worker 0."""

    def __init__(self, url: str, keys: Path) -> None:
        broker, _, store = url.partition("|")
        plain: Any = {"namespace": "scenario", "deadline": 15.0, "backlog": "none"}
        self.clock = Watch()
        self.app = Umbel(broker, store=store or None, keys=str(keys), clock=self.clock, **plain)
        asyncio.run(self.app.backend.migrate())
        self.ring = Keyring.read(keys)
        self.ran: list[int] = []
        self.refused: list[events.InboxRefused] = []
        self.app.telemetry.subscribe(self._hear)

        @self.app.task(name="work", track="failures")
        async def work(mark: int) -> None:
            self.ran.append(mark)

        @self.app.task(name="other", track="failures")
        async def other(mark: int) -> None:
            self.ran.append(mark)

        @self.app.task(name="one at a time", track="failures", limit=1)
        async def gated(mark: int) -> None:
            self.ran.append(mark)

        self.work, self.gated = work, gated
        self._marks = 0

    def _hear(self, event: events.Event) -> None:
        if isinstance(event, events.InboxRefused):
            self.refused.append(event)

    def mark(self) -> int:
        """A number that no other message bears."""
        self._marks += 1
        return self._marks

    def message(self, mark: int, **options: Any) -> Envelope:
        """A message as this application would send it, signed."""
        call = self.work.options(worker=0, **options).s(mark)
        (built,) = self.app._client._builder.build([call])
        return built

    def unsigned(self, mark: int) -> Envelope:
        return replace(self.message(mark), headers={})

    def send(self, message: Envelope) -> None:
        self.app._client.send_envelope(message)

    def why(self, job: str) -> str | None:
        """Why the message was refused, once it was."""
        return next((event.why for event in self.refused if event.job == job), None)

    def ask(self, work: Callable[[Operations], Awaitable[object]]) -> None:
        async def asked() -> None:
            operations = self.app.operations()
            try:
                await work(operations)
            finally:
                await operations.close()

        asyncio.run(asked())

    def forget(self, job: str) -> None:
        """Wait until it has run, and leave no record of it."""

        def gone() -> bool:
            try:
                if self.app.handle(job).state is State.SUCCEEDED:
                    self.ask(lambda operations: operations.remove([job]))
            except UnknownJob:
                return True
            return False

        until(gone, "its record to be gone")

    def ended(self, job: str) -> bool:
        try:
            return self.app.handle(job).state in (State.BURIED, State.EXPIRED)
        except UnknownJob:
            return False


@pytest.fixture
def office(url: str, tmp_path: Path) -> Iterator[Office]:
    keys = tmp_path / "keys"
    Keyring().with_new(datetime.now(UTC) - timedelta(minutes=1)).write(keys)
    office = Office(url, keys)
    yield office
    office.app.close()


Tamper = Callable[[Office, int, st.DataObject], Envelope]


def unsigned(office: Office, mark: int, data: st.DataObject) -> Envelope:
    return office.unsigned(mark)


def signed_by_a_stranger(office: Office, mark: int, data: st.DataObject) -> Envelope:
    return sign_envelope(office.unsigned(mark), STRANGER.keys[0], office.app.clock.now())


def another_argument(office: Office, mark: int, data: st.DataObject) -> Envelope:
    message = office.message(office.mark())
    return replace(message, body=replace(message.body, data=b'{"args":[%d],"kwargs":{}}' % mark))


def another_task(office: Office, mark: int, data: st.DataObject) -> Envelope:
    return replace(office.message(mark), subject="other")


def another_id(office: Office, mark: int, data: st.DataObject) -> Envelope:
    return replace(office.message(mark), id=fresh_id())


def another_worker(office: Office, mark: int, data: st.DataObject) -> Envelope:
    call = office.work.options(worker=1).s(mark)
    (theirs,) = office.app._client._builder.build([call])
    return replace(theirs, queue="worker-0")


def another_namespace(office: Office, mark: int, data: st.DataObject) -> Envelope:
    theirs = replace(office.unsigned(mark), namespace="elsewhere")
    return replace(
        sign_envelope(theirs, office.ring.keys[0], office.app.clock.now()), namespace="scenario"
    )


def another_header(office: Office, mark: int, data: st.DataObject) -> Envelope:
    message = office.message(mark)
    name = data.draw(st.sampled_from(["timeout", "track", "retry", "further"]))
    return replace(message, headers={**message.headers, name: "1"})


def another_form(office: Office, mark: int, data: st.DataObject) -> Envelope:
    message = office.message(mark)
    return replace(message, body=Body("application/json; charset=utf-8", message.body.data))


def a_garbled_seal(office: Office, mark: int, data: st.DataObject) -> Envelope:
    message = office.message(mark)
    form, key, until, signature = message.headers[SIGNATURE_HEADER].split(".")
    garbled = data.draw(
        st.sampled_from(
            [
                f"{form}.{key}.{int(until) + 86_400}.{signature}",
                f"{form}.{STRANGER.keys[0].id}.{until}.{signature}",
                f"2.{key}.{until}.{signature}",
                f"{form}.{key}.{until}.{signature[::-1]}",
                f"{form}.{key}.{until}.",
                f"{form}.{key}",
                "",
            ]
        )
        | st.text("0123456789abcdef.", max_size=100)
    )
    return replace(message, headers={SIGNATURE_HEADER: garbled})


def expired(office: Office, mark: int, data: st.DataObject) -> Envelope:
    return sign_envelope(
        office.unsigned(mark), office.ring.keys[0], office.app.clock.now() - 90_000
    )


def expired_and_lengthened(office: Office, mark: int, data: st.DataObject) -> Envelope:
    now = office.app.clock.now()
    ended = replace(office.unsigned(mark), expires=now - 60)
    return replace(sign_envelope(ended, office.ring.keys[0], now), expires=None)


TAMPERED: list[Tamper] = [
    *(unsigned, signed_by_a_stranger, another_argument, another_task, another_id, another_worker),
    *(another_namespace, another_header, another_form, a_garbled_seal, expired),
    expired_and_lengthened,
]


def test_what_is_forged_altered_or_expired_is_never_run(office: Office) -> None:
    tried: set[str] = set()

    @settings(
        max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(st.data(), st.sampled_from(TAMPERED))
    def run(data: st.DataObject, tamper: Tamper) -> None:
        bad, good = office.mark(), office.mark()
        message = tamper(office, bad, data)
        for one in (message, office.message(good)):
            office.send(one)
        until(lambda: good in office.ran, "the honest message to run")
        until(lambda: office.why(message.id) is not None, "the other to be refused")
        assert bad not in office.ran
        tried.add(tamper.__name__)

    with working(office.app, queues=("default",), index=0):
        run()
    assert not {*office.ran} & {event.job for event in office.refused}
    assert len(tried) > 1


@pytest.mark.parametrize("task", ["work", "gated"])
def test_what_is_replayed_runs_once(office: Office, task: str) -> None:
    """Its record is gone by then: nothing but the hearing of it is remembered."""
    # Else the worker itself would remember the last hundred.
    with working(office.app, queues=("default",), index=0, remember=0):
        for _ in range(5):
            mark = office.mark()
            call = getattr(office, task).options(worker=0).s(mark)
            (message,) = office.app._client._builder.build([call])
            office.send(message)
            until(lambda mark=mark: mark in office.ran, "it to run")
            office.forget(message.id)
            office.send(message)
            until(lambda job=message.id: office.ended(job), "the second to be refused")
            assert office.ran.count(mark) == 1
            assert office.why(message.id) == "replayed"


def test_what_was_heard_by_a_life_before_is_not_heard_again(office: Office) -> None:
    mark = office.mark()
    message = office.message(mark)
    with working(office.app, queues=("default",), index=0, name="anna"):
        office.send(message)
        until(lambda: mark in office.ran, "it to run")
        office.forget(message.id)
    with working(office.app, queues=("default",), index=0, name="anna"):
        office.send(message)
        until(lambda: office.ended(message.id), "the second to be refused")
    assert office.ran == [mark]


def test_a_retry_is_no_replay_and_may_come_late(office: Office) -> None:
    tries: list[int] = []

    @office.app.task(name="again", retry=1)
    async def again() -> None:
        tries.append(1)
        if len(tries) == 1:
            office.clock.ahead = 2 * 86_400.0  # the signature is too old by now
            raise OSError("the first time")

    handle = again.options(worker=0).delay()
    with working(office.app, queues=("default",), index=0):
        assert handle.get(timeout=60) is None
    assert len(tries) == 2
    assert office.refused == []


def test_who_runs_a_refused_copy_again_is_refused_again(office: Office) -> None:
    mark = office.mark()
    message = office.message(mark)
    with working(office.app, queues=("default",), index=0, remember=0):
        office.send(message)
        until(lambda: mark in office.ran, "it to run")
        office.forget(message.id)
        office.send(message)
        until(lambda: office.ended(message.id), "the second to be refused")
        office.ask(lambda operations: operations.retry([message.id]))
        until(lambda: len(office.refused) == 2, "it to be refused again")
    assert office.ran == [mark]
    assert {event.why for event in office.refused} == {"replayed"}
