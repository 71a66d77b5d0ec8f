"""Publishing a backlog goes on: no exception ends it, and no message stops the others."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from integration.conftest import POSTGRES, Place
from integration.running import DEADLINE, Heard, Proxy, until
from umbel import Umbel
from umbel.backends import Published
from umbel.backends.backlog import Backlog
from umbel.backends.postgres.backlog import PostgresBacklog
from umbel.backends.sqlite.backlog import SqliteBacklog
from umbel.clock import SystemClock
from umbel.errors import SchemaError, Unavailable
from umbel.messages import JSON, Body, Envelope, fresh_id
from umbel.publisher import Forwarder
from umbel.publisher.memory_backlog import MemoryBacklog, MemoryFallbackBacklog
from umbel.resilience import Backoff, Breaker
from umbel.telemetry import Telemetry, events

CLOCK = SystemClock()


def made(count: int) -> list[Envelope]:
    return [
        Envelope(id=fresh_id(), subject="note", body=Body(JSON, b"%d" % number))
        for number in range(count)
    ]


def ids(envelopes: Sequence[Envelope]) -> list[str]:
    return [envelope.id for envelope in envelopes]


class Broker:
    """A broker that accepts messages, unless the test sets an error."""

    def __init__(self) -> None:
        self.fault: Callable[[Sequence[Envelope]], BaseException | None] = lambda _: None
        self.published: list[str] = []
        self.calls = 0

    def send(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        self.calls += 1
        error = self.fault(envelopes)
        if error is not None:
            raise error
        self.published += [one.id for one in envelopes if one.id not in self.published]
        return [Published(envelope.id) for envelope in envelopes]

    def is_down(self) -> None:
        self.fault = lambda _: Unavailable("it is down")

    def cannot_take(self, bad: Envelope) -> None:
        self.fault = lambda sent: ValueError("an odd message") if bad in sent else None


class Outage:
    """A forwarder on one backlog, and the broker behind it."""

    def __init__(self, backlog: Backlog) -> None:
        self.broker = Broker()
        self.told: list[events.Event] = []
        self.backlog = backlog
        self.forwarder = self.forward()
        if not backlog.durable:  # it keeps messages only for a broker that once answered
            self.forwarder.send(made(1), 5.0)
            self.broker.published.clear()

    def forward(self) -> Forwarder:
        return Forwarder(
            self.broker.send,
            self.backlog,
            CLOCK,
            deadline=5.0,
            telemetry=Telemetry(self.told.append),
            breaker=Breaker(failures=1, pause=Backoff(first=0.01, cap=0.05)),
        )

    def keep(self, envelopes: Sequence[Envelope]) -> None:
        """Publish them while the broker is down."""
        self.broker.is_down()
        for envelope in envelopes:
            self.forwarder.send([envelope], 0.05)
        assert self.forwarder.status().messages == len(envelopes)

    def of(self, kind: type[events.Event]) -> list[Any]:
        return [event for event in self.told if isinstance(event, kind)]


@pytest.fixture(params=["memory", "disk", "postgres"])
def outage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Outage]:
    memory = MemoryBacklog(CLOCK, limit=1000)
    if request.param == "memory":
        backlog: Backlog = memory
    elif request.param == "disk":
        backlog = MemoryFallbackBacklog(
            SqliteBacklog(f"{tmp_path}/b.db", "one", CLOCK, limit=1000), memory
        )
    else:
        url = request.getfixturevalue("postgres_url")
        backlog = MemoryFallbackBacklog(
            PostgresBacklog(url, fresh_id(), CLOCK, limit=1000, busy=5.0), memory
        )
    outage = Outage(backlog)
    yield outage
    outage.broker.fault = lambda _: None
    outage.forwarder.close(DEADLINE)


def test_an_exception_of_another_library_does_not_end_the_publishing(outage: Outage) -> None:
    sent = made(10)
    outage.keep(sent)
    outage.broker.fault = lambda _: RuntimeError("a fault that has nothing to do with messages")
    until(lambda: len(outage.of(events.ServiceFailed)) >= 2, "the fault to be reported twice")
    failed = outage.of(events.ServiceFailed)
    assert "nothing to do with messages" in failed[0].error
    assert failed[1].delay > failed[0].delay
    assert outage.broker.published == []
    outage.broker.fault = lambda _: None
    until(lambda: len(outage.broker.published) == 10, "all of them")
    assert outage.broker.published == ids(sent)


def test_a_message_that_cannot_be_published_stops_no_other_and_is_tried_again(
    outage: Outage,
) -> None:
    sent = made(20)
    bad, good = sent[3], [*sent[:3], *sent[4:]]
    outage.keep(sent)
    outage.broker.cannot_take(bad)
    until(lambda: len(outage.broker.published) == 19, "the others")
    assert outage.broker.published == ids(good)
    until(lambda: bool(outage.of(events.MessagePostponed)), "the report")
    (told, *_) = outage.of(events.MessagePostponed)
    assert (told.job, told.task) == (bad.id, "note")
    assert "an odd message" in told.error
    assert outage.forwarder.status().messages == 1
    outage.broker.fault = lambda _: None
    until(lambda: bad.id in outage.broker.published, "the message that was postponed")
    until(lambda: outage.forwarder.status().messages == 0, "an empty backlog")


def test_new_messages_do_not_wait_behind_one_that_is_postponed(outage: Outage) -> None:
    sent = made(2)
    outage.keep(sent)
    outage.broker.cannot_take(sent[0])
    until(lambda: bool(outage.of(events.BacklogEnded)), "the others to be published")
    begun = len(outage.of(events.BacklogStarted))
    for new in made(20):
        outage.forwarder.send([new], 5.0)
        assert outage.broker.published[-1] == new.id
    assert len(outage.of(events.BacklogStarted)) == begun
    assert ids(outage.backlog.oldest(10)) == [sent[0].id]


def test_a_message_that_is_postponed_is_not_tried_without_a_pause(outage: Outage) -> None:
    sent = made(2)
    outage.keep(sent)
    outage.broker.cannot_take(sent[0])
    until(lambda: len(outage.of(events.MessagePostponed)) >= 2, "two tries")
    first, second = outage.of(events.MessagePostponed)[:2]
    assert second.delay > first.delay >= 0.5
    assert outage.broker.calls < 200


def test_an_outage_while_a_message_is_postponed_loses_nothing(outage: Outage) -> None:
    bad, *sent = made(5)
    outage.keep([bad, sent[0]])
    outage.broker.cannot_take(bad)
    until(lambda: outage.broker.published == ids(sent[:1]), "the other one")
    outage.broker.is_down()
    for envelope in sent[1:]:
        outage.forwarder.send([envelope], 0.05)
    outage.broker.cannot_take(bad)
    until(lambda: len(outage.broker.published) == 4, "what was kept in the second outage")
    assert outage.broker.published == ids(sent)


def test_a_broker_without_a_schema_refuses_no_message(outage: Outage) -> None:
    sent = made(5)
    outage.keep(sent)
    outage.broker.fault = lambda _: SchemaError("run: umbel db migrate")
    until(lambda: bool(outage.of(events.ServiceFailed)), "the report")
    assert outage.forwarder.status().messages == 5
    assert outage.of(events.MessageRefused) == []
    outage.broker.fault = lambda _: None
    until(lambda: len(outage.broker.published) == 5, "all of them")
    assert outage.broker.published == ids(sent)


@pytest.mark.parametrize("error", [RuntimeError("odd"), KeyboardInterrupt()], ids=repr)
def test_a_call_that_fails_unexpectedly_does_not_leave_the_breaker_half_open(
    error: BaseException,
) -> None:
    outage = Outage(MemoryBacklog(CLOCK, limit=10))
    first, second = made(2)
    faults: list[BaseException] = [Unavailable("it opens the breaker"), error]
    outage.broker.fault = lambda _: faults.pop(0) if faults else None
    with pytest.raises(type(error)):
        outage.forwarder.send([first], 5.0)
    outage.forwarder.send([second], 5.0)
    until(lambda: second.id in outage.broker.published, "the next message")
    outage.forwarder.close(DEADLINE)


def test_messages_in_memory_are_published_at_the_end_although_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, outage = threading.Thread.start, Outage(MemoryBacklog(CLOCK, limit=10))

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "umbel-forwarder":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    sent = made(3)
    outage.keep(sent)
    outage.broker.fault = lambda _: None
    outage.forwarder.close(DEADLINE)
    assert outage.broker.published == ids(sent)
    assert outage.of(events.BacklogLost) == []
    assert 0 < len(outage.of(events.ServiceFailed)) <= 4


# --- what is in the table ---------------------------------------------------------------------


class TestARowThatCannotBeRead:
    """Other versions and processes read the rows of a backlog, and people edit them."""

    @pytest.fixture(params=["disk", "postgres"])
    def place(
        self, request: pytest.FixtureRequest, tmp_path: Path
    ) -> tuple[Callable[[], Backlog], Callable[[str, bytes], None]]:
        if request.param == "disk":
            path = f"{tmp_path}/b.db"

            def overwrite(job: str, event: bytes) -> None:
                with closing(sqlite3.connect(path)) as connection, connection:
                    connection.execute("update backlog set event = ? where id = ?", (event, job))

            return lambda: SqliteBacklog(path, "one", CLOCK, limit=100), overwrite
        url = request.getfixturevalue("postgres_url")
        namespace, schema = fresh_id(), url.rpartition("schema=")[2]

        def overwrite_row(job: str, event: bytes) -> None:
            with psycopg.connect(POSTGRES) as connection:
                connection.execute(
                    f"update {schema}.backlog set event = %s where id = %s", (event, job)
                )

        return lambda: PostgresBacklog(url, namespace, CLOCK, limit=100, busy=5.0), overwrite_row

    @pytest.mark.parametrize("event", [b"{", b"", b'{"specversion": "9"}'])
    def test_stops_no_other_message_and_stays(self, place: Any, event: bytes) -> None:
        opened, overwrite = place
        sent, before = made(5), opened()
        before.put(sent)
        overwrite(sent[1].id, event)
        before.close()
        outage = Outage(MemoryFallbackBacklog(opened(), MemoryBacklog(CLOCK, limit=10)))
        good = ids([sent[0], *sent[2:]])
        until(lambda: set(good) <= set(outage.broker.published), "the others")
        until(lambda: bool(outage.of(events.MessagePostponed)), "the report")
        assert outage.of(events.MessagePostponed)[0].job == sent[1].id
        assert outage.forwarder.status().messages == 1
        outage.forwarder.close(DEADLINE)


def test_what_an_earlier_process_left_is_published_though_the_first_look_fails(
    tmp_path: Path,
) -> None:
    path, sent = f"{tmp_path}/b.db", made(3)
    before = SqliteBacklog(path, "one", CLOCK, limit=100)
    before.put(sent)
    before.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma locking_mode = exclusive")
        connection.execute("begin exclusive")
        disk = SqliteBacklog(path, "one", CLOCK, limit=100, busy=0.05)
        outage = Outage(MemoryFallbackBacklog(disk, MemoryBacklog(CLOCK, limit=10)))
        connection.execute("rollback")
    until(lambda: len(outage.broker.published) == 3, "what was left")
    outage.forwarder.close(DEADLINE)


# --- the real parts ---------------------------------------------------------------------------


def stored(place: Place) -> int:
    return len(place.ids())


def noting(app: Umbel) -> Any:
    @app.task(name="note")
    def note(number: int) -> None: ...

    return note


def test_a_lock_file_that_is_a_folder_is_reported_and_the_backlog_published_once_it_is_gone(
    postgres: Place, distant: Place, proxy: Proxy, tmp_path: Path
) -> None:
    lock = tmp_path / f"backlog.db.{distant.namespace}.lock"
    lock.mkdir()
    app = distant.app(deadline=0.5, backlog=f"sqlite:///{tmp_path}/backlog.db")
    note, heard = noting(app), Heard(app)
    proxy.cut()
    note.delay(1)
    proxy.mend()
    told = heard.wait(events.ServiceFailed, 2)
    assert str(lock) in told.error
    assert stored(postgres) == 0
    lock.rmdir()
    until(lambda: stored(postgres) == 1, "what was kept")
    heard.wait(events.BacklogEnded)
    note.delay(2)
    assert stored(postgres) == 2


WITHOUT_DESCRIPTORS = """
import resource, sys, threading
from umbel import Umbel
from umbel.telemetry import Telemetry, events
app = Umbel(sys.argv[1], namespace=sys.argv[2], deadline=0.5, backlog=sys.argv[3])
failed = threading.Event()
@app.telemetry.subscribe
def hear(event):
    if isinstance(event, events.ServiceFailed):
        failed.set()
@app.task(name="note")
def note(number: int) -> None: ...
note.delay(0)
print("connected", flush=True)
sys.stdin.readline()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
note.delay(1)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
print("without descriptors", flush=True)
sys.stdin.readline()
print("reported", failed.wait(30), flush=True)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print("left", app.flush(30), flush=True)
"""


def test_a_process_without_file_descriptors_publishes_its_backlog_when_it_has_some_again(
    postgres: Place, distant: Place, proxy: Proxy, tmp_path: Path
) -> None:
    words = [distant.url, distant.namespace, f"sqlite:///{tmp_path}/backlog.db"]
    with subprocess.Popen(
        [sys.executable, "-c", WITHOUT_DESCRIPTORS, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "connected\n"
        proxy.cut()
        print("cut", file=process.stdin, flush=True)
        assert process.stdout.readline() == "without descriptors\n"
        proxy.mend()
        print("mended", file=process.stdin, flush=True)
        assert process.stdout.readline() == "reported True\n"
        assert process.stdout.readline() == "left 0\n"
    assert stored(postgres) == 2
