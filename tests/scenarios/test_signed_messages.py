"""Any client can publish, but a message to a worker runs only if a trusted key has signed it."""

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
UNTRUSTED = Keyring().with_new(datetime(2020, 1, 1, tzinfo=UTC))


class AdjustableClock(SystemClock):
    """A clock that can be moved forward."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


class SignedApplication:
    """An application with keys, tasks that record their runs, and messages to its worker 0."""

    def __init__(self, url: str, keys: Path) -> None:
        broker, _, store = url.partition("|")
        plain: Any = {"namespace": "scenario", "deadline": 15.0, "backlog": "none"}
        self.clock = AdjustableClock()
        self.app = Umbel(broker, store=store or None, keys=str(keys), clock=self.clock, **plain)
        asyncio.run(self.app.backend.migrate())
        self.ring = Keyring.read(keys)
        self.ran: list[int] = []
        self.refused: list[events.InboxRefused] = []
        self.app.telemetry.subscribe(self._collect_refusals)

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

    def _collect_refusals(self, event: events.Event) -> None:
        if isinstance(event, events.InboxRefused):
            self.refused.append(event)

    def mark(self) -> int:
        """Return a number that no other message has."""
        self._marks += 1
        return self._marks

    def message(self, mark: int, **options: Any) -> Envelope:
        """Return a signed message, as this application would send it."""
        call = self.work.options(worker=0, **options).s(mark)
        (built,) = self.app._client._builder.build([call])
        return built

    def unsigned(self, mark: int) -> Envelope:
        return replace(self.message(mark), headers={})

    def send(self, message: Envelope) -> None:
        self.app._client.send_envelope(message)

    def why(self, job: str) -> str | None:
        """Return why the message was refused, or None if it was not."""
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
        """Wait until the job has run, and remove its record."""

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
def signed(url: str, tmp_path: Path) -> Iterator[SignedApplication]:
    keys = tmp_path / "keys"
    Keyring().with_new(datetime.now(UTC) - timedelta(minutes=1)).write(keys)
    signed = SignedApplication(url, keys)
    yield signed
    signed.app.close()


Tamper = Callable[[SignedApplication, int, st.DataObject], Envelope]


def unsigned(signed: SignedApplication, mark: int, data: st.DataObject) -> Envelope:
    return signed.unsigned(mark)


def signed_by_an_untrusted_key(
    signed: SignedApplication, mark: int, data: st.DataObject
) -> Envelope:
    return sign_envelope(signed.unsigned(mark), UNTRUSTED.keys[0], signed.app.clock.now())


def another_argument(signed: SignedApplication, mark: int, data: st.DataObject) -> Envelope:
    message = signed.message(signed.mark())
    return replace(message, body=replace(message.body, data=b'{"args":[%d],"kwargs":{}}' % mark))


def another_task(signed: SignedApplication, mark: int, data: st.DataObject) -> Envelope:
    return replace(signed.message(mark), subject="other")


def another_id(signed: SignedApplication, mark: int, data: st.DataObject) -> Envelope:
    return replace(signed.message(mark), id=fresh_id())


def another_worker(signed: SignedApplication, mark: int, data: st.DataObject) -> Envelope:
    call = signed.work.options(worker=1).s(mark)
    (theirs,) = signed.app._client._builder.build([call])
    return replace(theirs, queue="worker-0")


def another_namespace(signed: SignedApplication, mark: int, data: st.DataObject) -> Envelope:
    theirs = replace(signed.unsigned(mark), namespace="elsewhere")
    return replace(
        sign_envelope(theirs, signed.ring.keys[0], signed.app.clock.now()), namespace="scenario"
    )


def another_header(signed: SignedApplication, mark: int, data: st.DataObject) -> Envelope:
    message = signed.message(mark)
    name = data.draw(st.sampled_from(["timeout", "track", "retry", "further"]))
    return replace(message, headers={**message.headers, name: "1"})


def another_form(signed: SignedApplication, mark: int, data: st.DataObject) -> Envelope:
    message = signed.message(mark)
    return replace(message, body=Body("application/json; charset=utf-8", message.body.data))


def a_garbled_signature(signed: SignedApplication, mark: int, data: st.DataObject) -> Envelope:
    message = signed.message(mark)
    form, key, until, signature = message.headers[SIGNATURE_HEADER].split(".")
    garbled = data.draw(
        st.sampled_from(
            [
                f"{form}.{key}.{int(until) + 86_400}.{signature}",
                f"{form}.{UNTRUSTED.keys[0].id}.{until}.{signature}",
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


def expired(signed: SignedApplication, mark: int, data: st.DataObject) -> Envelope:
    return sign_envelope(
        signed.unsigned(mark), signed.ring.keys[0], signed.app.clock.now() - 90_000
    )


def expired_and_lengthened(signed: SignedApplication, mark: int, data: st.DataObject) -> Envelope:
    now = signed.app.clock.now()
    ended = replace(signed.unsigned(mark), expires=now - 60)
    return replace(sign_envelope(ended, signed.ring.keys[0], now), expires=None)


TAMPERED: list[Tamper] = [
    *(
        unsigned,
        signed_by_an_untrusted_key,
        another_argument,
        another_task,
        another_id,
        another_worker,
    ),
    *(another_namespace, another_header, another_form, a_garbled_signature, expired),
    expired_and_lengthened,
]


def test_a_forged_altered_or_expired_message_never_runs(signed: SignedApplication) -> None:
    tried: set[str] = set()

    @settings(
        max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(st.data(), st.sampled_from(TAMPERED))
    def run(data: st.DataObject, tamper: Tamper) -> None:
        bad, good = signed.mark(), signed.mark()
        message = tamper(signed, bad, data)
        for one in (message, signed.message(good)):
            signed.send(one)
        until(lambda: good in signed.ran, "the honest message to run")
        until(lambda: signed.why(message.id) is not None, "the other to be refused")
        assert bad not in signed.ran
        tried.add(tamper.__name__)

    with working(signed.app, queues=("default",), index=0):
        run()
    assert not {*signed.ran} & {event.job for event in signed.refused}
    assert len(tried) > 1


@pytest.mark.parametrize("task", ["work", "gated"])
def test_a_replayed_message_runs_once(signed: SignedApplication, task: str) -> None:
    """Its record is removed before: only the inbox receipt remains."""
    # Otherwise the worker itself would remember the last hundred.
    with working(signed.app, queues=("default",), index=0, remember=0):
        for _ in range(5):
            mark = signed.mark()
            call = getattr(signed, task).options(worker=0).s(mark)
            (message,) = signed.app._client._builder.build([call])
            signed.send(message)
            until(lambda mark=mark: mark in signed.ran, "it to run")
            signed.forget(message.id)
            signed.send(message)
            until(lambda job=message.id: signed.ended(job), "the second to be refused")
            assert signed.ran.count(mark) == 1
            assert signed.why(message.id) == "replayed"


def test_a_message_received_by_an_earlier_incarnation_is_not_run_again(
    signed: SignedApplication,
) -> None:
    mark = signed.mark()
    message = signed.message(mark)
    with working(signed.app, queues=("default",), index=0, name="anna"):
        signed.send(message)
        until(lambda: mark in signed.ran, "it to run")
        signed.forget(message.id)
    with working(signed.app, queues=("default",), index=0, name="anna"):
        signed.send(message)
        until(lambda: signed.ended(message.id), "the second to be refused")
    assert signed.ran == [mark]


def test_a_retry_is_no_replay_and_may_come_late(signed: SignedApplication) -> None:
    tries: list[int] = []

    @signed.app.task(name="again", retry=1)
    async def again() -> None:
        tries.append(1)
        if len(tries) == 1:
            signed.clock.ahead = 2 * 86_400.0  # the signature is too old by now
            raise OSError("the first time")

    handle = again.options(worker=0).delay()
    with working(signed.app, queues=("default",), index=0):
        assert handle.get(timeout=60) is None
    assert len(tries) == 2
    assert signed.refused == []


def test_a_refused_copy_that_is_retried_is_refused_again(signed: SignedApplication) -> None:
    mark = signed.mark()
    message = signed.message(mark)
    with working(signed.app, queues=("default",), index=0, remember=0):
        signed.send(message)
        until(lambda: mark in signed.ran, "it to run")
        signed.forget(message.id)
        signed.send(message)
        until(lambda: signed.ended(message.id), "the second to be refused")
        signed.ask(lambda operations: operations.retry([message.id]))
        until(lambda: len(signed.refused) == 2, "it to be refused again")
    assert signed.ran == [mark]
    assert {event.why for event in signed.refused} == {"replayed"}
