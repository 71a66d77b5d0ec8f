"""The broker is unreachable: messages are kept, callers continue, and the order is kept."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from integration.conftest import Place
from integration.running import Proxy
from umbel import Umbel
from umbel.app.client import Client
from umbel.backends.backlog import Backlog
from umbel.backends.postgres.backlog import PostgresBacklog
from umbel.backends.sqlite.backlog import SqliteBacklog
from umbel.clock import SystemClock
from umbel.errors import BacklogFull, ConfigurationError, DuplicateJob, PublishTimeout
from umbel.messages import JSON, Body, Envelope, fresh_id
from umbel.publisher.memory_backlog import MemoryBacklog, MemoryFallbackBacklog
from umbel.resilience import Circuit
from umbel.telemetry import events

SOON = 30.0


def until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.02)


def numbers(place: Place) -> list[int]:
    """Return the arguments of the jobs in the store, in the order of publication."""
    with psycopg.connect(place.url.partition("?")[0]) as connection:
        rows = connection.execute(
            f"select body from {place.schema}.job where namespace = %s order by seq",
            (place.namespace,),
        ).fetchall()
    return [int(bytes(body).split(b"[")[1].split(b"]")[0]) for (body,) in rows]


def adder(app: Umbel) -> Any:
    @app.task(name="note")
    def note(number: int) -> None: ...

    return note


class Ears:
    """Records the events of an application."""

    def __init__(self, app: Umbel) -> None:
        self.heard: list[events.Event] = []
        app.telemetry.subscribe(self.heard.append)

    def of(self, kind: type[events.Event]) -> list[Any]:
        return [event for event in self.heard if isinstance(event, kind)]


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_what_is_published_during_an_outage_is_published_after_it_in_order(
    postgres: Place, distant: Place, proxy: Proxy, tmp_path: Path, kind: str
) -> None:
    backlog = "memory" if kind == "memory" else f"sqlite:///{tmp_path}/backlog.db"
    app = distant.app(deadline=0.5, backlog=backlog)
    note, ears = adder(app), Ears(app)
    note.delay(0)
    proxy.cut()
    handles = [note.delay(number) for number in range(1, 30)]
    assert numbers(postgres) == [0]
    assert app.flush(0) == 29
    proxy.mend()
    until(lambda: len(numbers(postgres)) == 30, "what was kept")
    assert numbers(postgres) == [*range(30)]
    assert {handle.id for handle in handles} < set(postgres.ids())
    until(lambda: bool(ears.of(events.BacklogEnded)), "the end of the backlog")
    assert len(ears.of(events.BacklogStarted)) == 1
    note.delay(30)
    assert numbers(postgres)[-1] == 30


def test_a_silent_broker_hangs_no_caller_and_its_breaker_opens(
    distant: Place, proxy: Proxy
) -> None:
    app = distant.app(deadline=1.0, backlog="memory")
    with closing(Client(app.backend, app.settings, app.codec, app.clock)) as client:
        note = adder(app)
        note.bind(client)
        note.delay(0)
        proxy.silence()
        begun = time.monotonic()
        for number in range(8):
            note.delay(number)
        assert time.monotonic() - begun < SOON
        forwarder = client.forwarder
        assert forwarder is not None
        until(lambda: forwarder.circuit() is not Circuit.CLOSED, "the breaker to open")
        assert forwarder.status().messages == 8


def test_new_messages_queue_up_behind_the_backlog(
    postgres: Place, distant: Place, proxy: Proxy
) -> None:
    app = distant.app(deadline=1, backlog="memory")
    note = adder(app)
    note.delay(0)
    proxy.cut()
    stop, sent = threading.Event(), [0]

    def publish() -> None:
        while not stop.is_set():
            sent[0] += 1
            note.delay(sent[0])
            time.sleep(0.002)

    thread = threading.Thread(target=publish)
    thread.start()
    until(lambda: sent[0] > 20, "some to be kept")
    proxy.mend()
    until(lambda: len(numbers(postgres)) > 40, "what was kept")
    stop.set()
    thread.join(SOON)
    until(lambda: len(numbers(postgres)) == sent[0] + 1, "everything")
    assert numbers(postgres) == [*range(sent[0] + 1)]


def test_a_full_backlog_is_an_error_that_says_so(distant: Place, proxy: Proxy) -> None:
    app = distant.app(deadline=1, backlog="memory", backlog_limit=5)
    note = adder(app)
    note.delay(0)
    proxy.cut()
    for number in range(1, 6):
        note.delay(number)
    with pytest.raises(BacklogFull, match="5 of 5 messages; raise backlog_limit"):
        note.delay(6)
    proxy.mend()
    until(lambda: len(distant.ids()) == 6, "the others")


def test_memory_takes_over_from_a_backlog_that_fails_and_is_published_first(
    tmp_path: Path,
) -> None:
    clock, file = SystemClock(), tmp_path / "backlog.db"
    disk = SqliteBacklog(str(file), "one", clock, limit=100, busy=0.05)
    reserve = MemoryFallbackBacklog(disk, MemoryBacklog(clock, limit=100))
    first, second, third = TestEveryBacklog.made(3)
    reserve.put([first])
    with locked(file):
        reserve.put([second])
    reserve.put([third])
    assert reserve.status().kind == f"{file}, and memory"
    published = []
    while batch := reserve.oldest(10):
        published += batch
        reserve.remove([one.id for one in batch])
    assert published == [second, first, third]
    reserve.close()


def test_nothing_is_lost_when_the_backlog_fails_during_the_outage(
    postgres: Place, distant: Place, proxy: Proxy, tmp_path: Path
) -> None:
    file = tmp_path / "backlog.db"
    app = distant.app(deadline=0.5, backlog=f"sqlite:///{file}")
    note = adder(app)
    proxy.cut()
    note.delay(1)
    with locked(file):
        note.delay(2)  # the file is locked: kept in memory
    proxy.mend()
    until(lambda: len(numbers(postgres)) == 2, "both")
    assert sorted(numbers(postgres)) == [1, 2]


@contextmanager
def locked(file: Path) -> Iterator[None]:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("begin immediate")
        yield
        connection.execute("rollback")


def test_a_refused_message_does_not_block_the_backlog(
    postgres: Place, distant: Place, proxy: Proxy
) -> None:
    app = distant.app(deadline=1, backlog="memory")
    note, ears = adder(app), Ears(app)
    note.options(unique="only one").delay(0)
    proxy.cut()
    note.delay(1)
    refused = note.options(unique="only one").delay(2)
    note.delay(3)
    proxy.mend()
    until(lambda: len(numbers(postgres)) == 3, "the others")
    assert numbers(postgres) == [0, 1, 3]
    until(lambda: bool(ears.of(events.MessageRefused)), "the refusal")
    (told,) = ears.of(events.MessageRefused)
    assert (told.job, told.task) == (refused.id, "note")
    assert "only one" in told.error


def test_memory_does_not_hide_a_broker_that_was_never_there(distant: Place, proxy: Proxy) -> None:
    proxy.cut()
    note = adder(distant.app(deadline=1, backlog="memory"))
    with pytest.raises(PublishTimeout, match="check that the server runs"):
        note.delay(1)
    proxy.mend()
    note.delay(2)
    proxy.cut()
    note.delay(3)
    proxy.mend()
    until(lambda: len(distant.ids()) == 2, "what was kept")


def test_a_subscriber_of_the_backlogs_end_may_publish(
    postgres: Place, distant: Place, proxy: Proxy
) -> None:
    app = distant.app(deadline=1, backlog="memory")
    note = adder(app)

    def publish(event: events.Event) -> None:
        if isinstance(event, events.BacklogEnded):
            note.delay(99)

    app.telemetry.subscribe(publish)
    note.delay(0)
    proxy.cut()
    note.delay(1)
    proxy.mend()
    until(lambda: numbers(postgres) == [0, 1, 99], "what the listener published")


def test_a_broker_that_answers_with_a_refusal_is_no_outage(postgres: Place) -> None:
    app = postgres.app(backlog="memory")
    note = adder(app)
    note.options(unique="x").delay(0)
    with pytest.raises(DuplicateJob):
        note.options(unique="x").delay(1)
    assert app.flush(0) == 0


PUBLISH = """
import sys, time
from umbel import Umbel
from umbel.app.client import Client
app = Umbel(sys.argv[1], namespace=sys.argv[2], deadline=0.5, backlog=sys.argv[3])
@app.task(name="note")
def note(number: int) -> None: ...
for number in range(int(sys.argv[4]), int(sys.argv[5])):
    note.delay(number)
print("published", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_a_backlog_on_disk_survives_its_process(
    postgres: Place, distant: Place, proxy: Proxy, tmp_path: Path
) -> None:
    backlog = f"sqlite:///{tmp_path}/backlog.db"

    def publishing(first: int, last: int) -> subprocess.Popen[str]:
        words = [distant.url, distant.namespace, backlog, str(first), str(last)]
        process = subprocess.Popen(
            [sys.executable, "-c", PUBLISH, *words], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "published\n"
        return process

    proxy.cut()
    first = publishing(0, 20)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    second = publishing(20, 40)
    proxy.mend()
    try:
        until(lambda: len(numbers(postgres)) == 40, "both lives' messages")
        assert numbers(postgres) == [*range(40)]
    finally:
        second.kill()
        second.communicate()


def test_an_application_that_ends_publishes_what_it_has_in_memory(
    postgres: Place, distant: Place, proxy: Proxy
) -> None:
    app = distant.app(deadline=2.0, backlog="memory")
    note = adder(app)
    note.delay(0)
    proxy.cut()
    for number in range(1, 6):
        note.delay(number)
    threading.Timer(0.2, proxy.mend).start()
    app.close()
    assert numbers(postgres) == [*range(6)]


def test_messages_lost_with_the_process_are_reported(distant: Place, proxy: Proxy) -> None:
    app = distant.app(deadline=2, backlog="memory")
    note, ears = adder(app), Ears(app)
    note.delay(0)
    proxy.cut()
    note.delay(1)
    app.close()
    (told,) = ears.of(events.BacklogLost)
    assert told.messages == 1


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"backlog": "disk"}, "backlog='disk'"),
        ({"backlog": "sqlite://"}, "three slashes and a path"),
        ({"backlog": "sqlite:////no/such/folder/x.db"}, "/no/such/folder does not exist"),
        ({"backlog_limit": 0}, "backlog_limit=0"),
    ],
)
def test_a_wrong_backlog_is_named(sqlite: Place, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        adder(sqlite.app(**settings)).delay(1)


@contextmanager
def led_elsewhere(opened: Callable[[], Backlog]) -> Iterator[None]:
    """Let a child process publish this backlog, as its leader, until the block ends."""
    done, ready = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(ready[1], b"y" if opened().acquire_leadership() else b"n")
            os.close(done[1])
            os.read(done[0], 1)
        finally:
            os._exit(0)
    try:
        assert os.read(ready[0], 1) == b"y"
        yield
    finally:
        for end in (*done[::-1], *ready):
            os.close(end)
        os.waitpid(child, 0)


class TestEveryBacklog:
    """The behavior that all kinds of backlogs share."""

    @pytest.fixture(params=["memory", "sqlite", "postgres"])
    def opened(
        self, request: pytest.FixtureRequest, tmp_path: Path
    ) -> Iterator[Callable[..., Backlog]]:
        made: list[Backlog] = []

        def opened(namespace: str = "one", limit: int = 100) -> Backlog:
            clock = SystemClock()
            if request.param == "memory":
                found: Backlog = MemoryBacklog(clock, limit=limit)
            elif request.param == "sqlite":
                found = SqliteBacklog(f"{tmp_path}/b.db", namespace, clock, limit=limit)
            else:
                url = request.getfixturevalue("postgres_url")
                found = PostgresBacklog(url, unique + namespace, clock, limit=limit, busy=5.0)
            made.append(found)
            return found

        unique = fresh_id()
        yield opened
        for one in made:
            one.remove([envelope.id for envelope in one.oldest(1000)])
            one.close()

    @staticmethod
    def made(count: int) -> list[Envelope]:
        return [
            Envelope(
                id=fresh_id(), subject="note", body=Body(JSON, b"%d" % number), headers={"a": "b"}
            )
            for number in range(count)
        ]

    def test_the_oldest_come_first_and_stay_until_removed(self, opened: Any) -> None:
        backlog, sent = opened(), self.made(6)
        backlog.put(sent[:4])
        backlog.put(sent[4:])
        assert [e.id for e in backlog.oldest(3)] == [e.id for e in sent[:3]]
        backlog.remove([e.id for e in sent[:2]])
        assert backlog.oldest(100) == sent[2:]
        held = backlog.status()
        assert held.messages == 4
        assert held.oldest is not None

    def test_the_time_in_the_backlog_counts_for_delays_and_expiry(self, opened: Any) -> None:
        backlog, (plain, short, long) = opened(), self.made(3)
        short, long = replace(short, delay=0.0, expires_in=0.001), replace(long, delay=3600.0)
        backlog.put([plain, short, long])
        first = backlog.oldest(3)[2].delay
        while (last := backlog.oldest(3)[2].delay) == first:
            pass
        assert 0 < last < first < 3600.0
        until(lambda: backlog.oldest(3)[1].expires_in == 0.0, "its last millisecond to pass")
        assert backlog.oldest(3)[0] == plain
        assert backlog.oldest(3)[1].delay == 0.0

    @pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
    def test_a_wall_clock_that_jumps_changes_no_age_of_a_message(
        self, opened: Any, monkeypatch: pytest.MonkeyPatch, jump: float
    ) -> None:
        backlog, right = opened(), time.time
        backlog.put([replace(self.made(1)[0], delay=3600.0)])
        monkeypatch.setattr(time, "time", lambda: right() + jump)
        assert 3000.0 < backlog.oldest(1)[0].delay <= 3600.0

    def test_it_knows_what_it_holds(self, opened: Any) -> None:
        backlog, (first, second) = opened(), self.made(2)
        backlog.put([first])
        assert [backlog.has(job) for job in (first.id, second.id, "no id")] == [True, False, False]
        backlog.remove([first.id])
        assert not backlog.has(first.id)

    def test_some_messages_may_be_left_out(self, opened: Any) -> None:
        backlog, sent = opened(), self.made(5)
        backlog.put(sent)
        left_out = [sent[0].id, sent[2].id]
        assert backlog.oldest(2, left_out) == [sent[1], sent[3]]

    def test_the_same_message_is_in_the_backlog_once(self, opened: Any) -> None:
        backlog, sent = opened(), self.made(2)
        backlog.put(sent)
        backlog.put(sent)
        assert backlog.oldest(10) == sent

    def test_it_takes_all_or_nothing_up_to_its_limit(self, opened: Any) -> None:
        backlog = opened(limit=3)
        backlog.put(self.made(2))
        with pytest.raises(BacklogFull):
            backlog.put(self.made(2))
        assert backlog.status().messages == 2

    def test_one_id_waits_in_each_namespace_and_leaves_only_its_own(self, opened: Any) -> None:
        (sent,) = self.made(1)
        one, two = opened("one"), opened("two")
        for backlog in (one, two):
            backlog.put([sent])
            assert backlog.oldest(10) == [sent]
        one.remove([sent.id])
        assert one.oldest(10) == []
        assert two.oldest(10) == [sent]

    def test_each_namespace_has_a_limit_of_its_own(self, opened: Any) -> None:
        one, two = opened("one", limit=2), opened("two", limit=2)
        one.put(self.made(2))
        two.put(self.made(2))
        assert two.status().messages == 2

    def test_a_leading_process_does_not_block_other_namespaces(self, opened: Any) -> None:
        mine, other = opened("one"), opened("two")
        if isinstance(mine, MemoryBacklog):
            pytest.skip("a backlog in memory is its process's own")
        with led_elsewhere(lambda: opened("one")):
            assert not mine.acquire_leadership()
            assert other.acquire_leadership()

    def test_only_one_leads(self, opened: Any) -> None:
        one = opened()
        assert one.acquire_leadership()
        assert one.acquire_leadership()
        one.close()
        one.close()


def test_a_backlog_on_disk_keeps_the_affinity_key_of_a_call(tmp_path: Path) -> None:
    with closing(Umbel("sqlite:///:memory:")) as app:
        call = adder(app).options(affinity="seven").s(1)
        disk = SqliteBacklog(f"{tmp_path}/backlog.db", "one", SystemClock(), limit=10)
        with closing(disk):
            disk.put([app.build(call)])
            (found,) = disk.oldest(10)
    assert found.headers == {"affinitykey": "seven"}
