"""Calls inside a call: a signal handler or a finalizer publishes while its thread publishes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from integration.backends import BACKENDS, PORTS, Backend, opened
from integration.running import HOST, Proxy, postgres_schema

DEADLINE = 10.0
HANG = 90.0
"""Seconds after which a process is considered to hang."""

PUBLISHING = """
import asyncio, faulthandler, gc, json, signal, sys, threading, time
from umbel import Umbel

broker, store, namespace, backlog, deadline, hang = sys.argv[1:]
faulthandler.dump_traceback_later(float(hang), exit=True)
how = {"store": store or None, "namespace": namespace, "backlog": backlog}
app = Umbel(broker, deadline=float(deadline), **how)

@app.task(name="note")
def note(number: int) -> None: ...

published, failed, took = [], [], []
nested = threading.local()

def publish(number):
    begun = time.monotonic()
    try:
        published.append(note.delay(number).id)
    except Exception as error:
        failed.append(repr(error))
    took.append(time.monotonic() - begun)

class Garbage:
    def __init__(self):
        self.me = self
    def __del__(self):
        inner.append(1)
        publish(2)

inner, depth = [], 0

def handle(number, frame):
    global depth
    if depth < 8:
        depth += 1
        inner.append(1)
        publish(1)
        depth -= 1

def report():
    gc.set_threshold(0)
    gc.collect()  # what is left would publish while Python exits
    app.close()
    print(json.dumps({"published": published, "failed": failed, "inner": len(inner),
                      "slowest": max(took)}))
"""
SIGNALS = """
def interrupted(count):
    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    inner.clear()
    outer = 0
    while len(inner) < count or outer < count:
        publish(0)
        outer += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
"""
HANDLER = (
    SIGNALS
    + """
interrupted(200)
report()
"""
)
FINALIZER = """
gc.set_threshold(1)
for _ in range(100):
    Garbage()
    publish(0)
gc.set_threshold(50)

def many(count):
    for _ in range(count):
        Garbage()
        publish(0)

async def amany(count):
    for _ in range(count):
        Garbage()
        handles = await asyncio.gather(*(note.adelay(3) for _ in range(3)))
        published.extend(handle.id for handle in handles)

threads = [threading.Thread(target=many, args=(30,)) for _ in range(3)]
threads.append(threading.Thread(target=lambda: asyncio.run(amany(30))))
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
gc.collect()
report()
"""
AT_EXIT = """
publish(0)
report()
Garbage.kept = Garbage()  # collected when Python exits
"""
STATION = """
import asyncio, sys
from umbel import Umbel

async def main():
    app = Umbel(sys.argv[1], namespace=sys.argv[2], backlog="none", deadline=20)
    station = app.publisher("umbel+tcp://127.0.0.1:0")
    running = asyncio.create_task(station.run())
    print(await station.address, flush=True)
    await running

asyncio.run(main())
"""
COUNTING = """
import faulthandler, signal, sys
from umbel.observability.metrics import Metrics
from umbel.telemetry import events

faulthandler.dump_traceback_later(float(sys.argv[1]), exit=True)
metrics, heard = Metrics(lambda task: True), 0

def handle(number, frame):
    global heard
    heard += 1
    metrics.count(events.BacklogEnded())

signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
while heard < 500:
    metrics.count(events.BacklogEnded())
    metrics.unreachable
signal.setitimer(signal.ITIMER_REAL, 0)
"""
OUTAGE = """
publish(0)  # the broker has answered once
print("away", flush=True)
sys.stdin.readline()
interrupted(60)
gc.set_threshold(1)
for _ in range(20):
    Garbage()
    publish(0)
print("kept", flush=True)
sys.stdin.readline()
gc.set_threshold(700)
left = app.flush(60)
assert not left, left
report()
"""


def started(backend: Backend, code: str, backlog: str, deadline: float) -> subprocess.Popen[str]:
    words = [backend.broker, backend.store, backend.namespace, backlog, str(deadline), str(HANG)]
    return subprocess.Popen(
        [sys.executable, "-c", PUBLISHING + code, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    )


def reported(process: subprocess.Popen[str]) -> Any:
    """Wait until a process has ended. Return its report."""
    try:
        said, errors = process.communicate(timeout=2 * HANG)
    finally:
        process.kill()
    assert process.returncode == 0, errors[-6000:]
    return json.loads(said)


def check(report: Any, backend: Backend, deadline: float = DEADLINE) -> None:
    assert not report["failed"], report["failed"][:3]
    assert report["inner"], "no call was made inside another one"
    assert report["slowest"] < deadline + 0.2
    assert backend.ids() == sorted(report["published"]), "every handle's job is there once"


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    with opened(request.param, tmp_path) as (backend, _):
        yield backend


@pytest.mark.parametrize("code", [HANDLER, FINALIZER], ids=["signal handler", "finalizer"])
def test_a_call_inside_another_call_of_its_thread_is_published(backend: Backend, code: str) -> None:
    check(reported(started(backend, code, "none", DEADLINE)), backend)


def test_a_finalizer_that_publishes_while_python_exits_does_not_hang(backend: Backend) -> None:
    published = reported(started(backend, AT_EXIT, "memory", 1.0))["published"]
    assert {*published} <= {*backend.ids()}


@pytest.mark.parametrize("code", [HANDLER, FINALIZER], ids=["signal handler", "finalizer"])
def test_a_call_inside_another_call_is_published_over_a_link(tmp_path: Path, code: str) -> None:
    pytest.importorskip("proton", reason="not run: links; Qpid Proton is not installed")
    with opened("sqlite", tmp_path) as (backend, _):
        command = [sys.executable, "-c", STATION, backend.broker, backend.namespace]
        station = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/")
        try:
            assert station.stdout is not None
            url = f"umbel+tcp://{station.stdout.readline().strip()}"
            far = Backend(url, "", backend.namespace)
            check(reported(started(far, code, "none", DEADLINE)), backend)
        finally:
            station.kill()
            station.communicate()


@pytest.mark.parametrize("kept", ["memory", "disk", "database"])
@pytest.mark.parametrize("kind", ["postgres", "redis", "nats+redis"])
def test_a_call_inside_another_call_goes_to_the_backlog_while_the_broker_is_down(
    tmp_path: Path, kind: str, kept: str
) -> None:
    names = kind.split("+")
    with ExitStack() as stack:
        proxies = {name: stack.enter_context(closing(Proxy(HOST, PORTS[name]))) for name in names}
        ports = {name: proxy.port for name, proxy in proxies.items()}
        far, near = stack.enter_context(opened(kind, tmp_path, ports))
        backlog = {
            "memory": "memory",
            "disk": f"sqlite:///{tmp_path}/backlog.db",
            "database": stack.enter_context(postgres_schema()),
        }[kept]
        process = started(far, SIGNALS + OUTAGE, backlog, DEADLINE)
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "away\n"
        for proxy in proxies.values():
            proxy.cut()
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.stdout.readline() == "kept\n", process.communicate()[1][-6000:]
        assert len(near.ids()) == 1, "the broker is away, and has only the first message"
        for proxy in proxies.values():
            proxy.mend()
        check(reported(process), near)


def test_a_signal_handler_may_count_an_event_while_its_thread_counts_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNTING, str(HANG)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
