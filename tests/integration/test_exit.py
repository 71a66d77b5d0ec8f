"""A process ends: what it published is sent, kept, or reported as lost, and each message once."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from integration.conftest import HANG, Place
from integration.running import Proxy
from umbel.backends.postgres.backlog import PostgresBacklog
from umbel.clock import SystemClock

PROLOGUE = """
import atexit, sys

at_last = []

@atexit.register
def early():
    # Registered before Umbel is imported: it runs after every exit handler of Umbel's.
    for work in at_last:
        work()

import logging, multiprocessing, os, time

logging.basicConfig(level="INFO", format="%(process)d %(message)s")
from umbel import Umbel

url, namespace, backlog, deadline = sys.argv[1:]
app = Umbel(url, namespace=namespace, backlog=backlog, deadline=float(deadline))

@app.task(name="note")
def note(number: int) -> None: ...

def say(*words):
    print(*words, flush=True)

def hear():
    return sys.stdin.readline()

"""


class Script:
    """A Python process that exchanges lines with the test."""

    def __init__(self, code: str, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROLOGUE + code, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def say(self) -> None:
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)

    def end(self) -> str:
        """Wait until it has ended. Return its log."""
        _, log = self._process.communicate(timeout=HANG)
        return log

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@contextmanager
def script(code: str, place: Place, backlog: str, deadline: float) -> Iterator[Script]:
    running = Script(code, place.url, place.namespace, backlog, str(deadline))
    try:
        yield running
    finally:
        running.kill()


def lost(log: str) -> int:
    """Return how many messages a log reports as lost."""
    return sum(map(int, re.findall(r"could not publish messages=(\d+)", log)))


# --- forked children --------------------------------------------------------------------------

IDLE_CHILD = """
note.delay(0)
say("connected")
hear()
note.delay(1)
begun = time.monotonic()
child = os.fork()
if child == 0:
    sys.exit()
os.waitpid(child, 0)
say(time.monotonic() - begun)
os._exit(0)
"""


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_forked_child_that_did_nothing_exits_at_once_and_reports_nothing(
    distant: Place, proxy: Proxy, tmp_path: Path, kind: str
) -> None:
    backlog = "memory" if kind == "memory" else f"sqlite:///{tmp_path}/backlog.db"
    with script(IDLE_CHILD, distant, backlog, deadline=10) as process:
        assert process.hear() == "connected"
        proxy.cut()
        process.say()
        assert float(process.hear()) < 5.0
        log = process.end()
    assert lost(log) == 0
    assert "Traceback" not in log


BUSY_CHILD = """
note.delay(0)
say("connected")

def publish():
    note.delay(2)
    say("published")
    hear()
    note.delay(3)

{fork}
"""
FORKS = {
    "fork": """
child = os.fork()
if child == 0:
    publish()
    sys.exit()
os.waitpid(child, 0)
""",
    "multiprocessing": """
child = multiprocessing.get_context("fork").Process(target=publish)
child.start()
child.join()
""",
}


@pytest.mark.parametrize("how", FORKS)
def test_a_forked_child_reports_the_messages_that_it_lost_itself(
    distant: Place, proxy: Proxy, how: str
) -> None:
    code = BUSY_CHILD.format(fork=FORKS[how])
    if how == "multiprocessing":
        code = code.replace("hear()", "open(0).readline()")  # its sys.stdin is closed
    with script(code, distant, "memory", deadline=1) as process:
        assert process.hear() == "connected"
        assert process.hear() == "published"
        proxy.cut()
        process.say()
        assert lost(process.end()) == 1


# --- exit handlers that run last --------------------------------------------------------------

EARLY_HANDLER = """
note.delay(0)
say("connected")
hear()
note.delay(1)
at_last.append(lambda: note.delay(2))
at_last.append(lambda: say("handled"))
"""


def test_what_an_early_exit_handler_publishes_while_the_broker_is_down_is_counted_as_lost(
    distant: Place, proxy: Proxy
) -> None:
    with script(EARLY_HANDLER, distant, "memory", deadline=1) as process:
        assert process.hear() == "connected"
        proxy.cut()
        process.say()
        assert process.hear() == "handled"
        assert lost(process.end()) == 2


@pytest.mark.parametrize("kind", ["disk", "postgres"])
def test_messages_of_an_early_exit_handler_go_to_the_backlog_while_the_broker_is_down(
    distant: Place, postgres_url: str, proxy: Proxy, tmp_path: Path, kind: str
) -> None:
    path = f"{tmp_path}/backlog.db"
    url = f"sqlite:///{path}" if kind == "disk" else postgres_url
    with script(EARLY_HANDLER, distant, url, deadline=1) as process:
        assert process.hear() == "connected"
        proxy.cut()
        process.say()
        assert process.hear() == "handled"
        assert lost(process.end()) == 0
    if kind == "disk":
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("select count(*) from backlog").fetchone() == (2,)
        return
    found = PostgresBacklog(url, distant.namespace, SystemClock(), limit=100, busy=10.0)
    assert found.status().messages == 2
    found.remove([one.id for one in found.oldest(10)])
    found.close()


def test_what_an_early_exit_handler_publishes_is_lost_and_counted_when_its_backlog_fails_too(
    distant: Place, proxy: Proxy, tmp_path: Path
) -> None:
    path = f"{tmp_path}/backlog.db"
    with script(EARLY_HANDLER, distant, f"sqlite:///{path}", deadline=1) as process:
        assert process.hear() == "connected"
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("begin immediate")
            proxy.cut()
            process.say()
            assert process.hear() == "handled"
            assert lost(process.end()) == 2


@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.parametrize(
    "begin",
    ["note.delay(0)", "note.delay(0); app.close()", "pass"],
    ids=["opened", "closed before", "never opened"],
)
def test_what_an_early_exit_handler_publishes_is_published(
    postgres: Place, distant: Place, tmp_path: Path, kind: str, begin: str
) -> None:
    backlog = "memory" if kind == "memory" else f"sqlite:///{tmp_path}/backlog.db"
    code = f"{begin}\nat_last.append(lambda: [note.delay(n) for n in range(1, 4)])"
    with script(code, distant, backlog, deadline=15) as process:
        assert lost(process.end()) == 0
    assert len(postgres.ids()) == (3 if begin == "pass" else 4)


def test_an_early_exit_handler_publishes_although_the_breaker_is_open(
    postgres: Place, distant: Place, proxy: Proxy
) -> None:
    code = """
note.delay(0)
say("connected")
hear()
note.delay(1)
def handle():
    say("handling")
    hear()
    note.delay(2)
at_last.append(handle)
"""
    with script(code, distant, "memory", deadline=1) as process:
        assert process.hear() == "connected"
        proxy.cut()
        process.say()
        assert process.hear() == "handling"
        proxy.mend()
        process.say()
        assert lost(process.end()) == 1
    assert len(postgres.ids()) == 2


def test_a_handler_that_runs_before_umbels_is_waited_for_like_any_caller(
    postgres: Place, distant: Place, proxy: Proxy
) -> None:
    """It publishes for the first time in its process, and the broker becomes unreachable."""
    code = """
def handle():
    note.delay(1)
    say("published")
    hear()
    note.delay(2)
atexit.register(handle)
"""
    with script(code, distant, "memory", deadline=1) as process:
        assert process.hear() == "published"
        proxy.cut()
        process.say()
        assert lost(process.end()) == 1
    assert len(postgres.ids()) == 1


def test_the_end_of_a_process_is_a_reason_to_try_once_more(
    postgres: Place, distant: Place, proxy: Proxy
) -> None:
    """The open breaker of this process would allow the next try after an hour."""
    code = """
from functools import partial
from umbel.app import connections
from umbel.resilience import Backoff, Breaker, Circuit

breaker = Breaker(failures=1, pause=Backoff(first=3600.0, cap=3600.0))
connections.Forwarder = partial(connections.Forwarder, breaker=breaker)
note.delay(0)
say("connected")
hear()
note.delay(1)
while breaker.state is not Circuit.OPEN:
    time.sleep(0.01)
say("waiting")
hear()
"""
    with script(code, distant, "memory", deadline=1) as process:
        assert process.hear() == "connected"
        proxy.cut()
        process.say()
        assert process.hear() == "waiting"
        proxy.mend()
        process.say()
        assert lost(process.end()) == 0
    assert len(postgres.ids()) == 2
