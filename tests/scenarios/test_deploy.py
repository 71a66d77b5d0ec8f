"""Deployments with real processes: "go" is true, and a kill loses no job and leaves nothing paused.

Small by default. At full size:

    UMBEL_GATES=200 UMBEL_GATE_COMMANDS=20 UMBEL_FIRM=5 UMBEL_DEPLOY_LIMIT=20
    UMBEL_DEPLOY_ROUNDS=50 UMBEL_DEPLOY_JOBS=20000
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import deploy_tasks as tasks
import msgspec
import pytest
from processes import HERE, Workers, until
from scenario_client import Client

from umbel import State
from umbel.control import DeploymentPlan
from umbel.messages import fresh_id
from umbel.operations import DeployView, Operations
from umbel.testing.history import Tracer

GATES = int(os.environ.get("UMBEL_GATES", "5"))
COMMANDS = int(os.environ.get("UMBEL_GATE_COMMANDS", "1"))
"""Every how many gates one is passed by the command itself."""
ROUNDS = int(os.environ.get("UMBEL_DEPLOY_ROUNDS", "3"))
JOBS = int(os.environ.get("UMBEL_DEPLOY_JOBS", "400"))
FIRM = float(os.environ.get("UMBEL_FIRM", "0.3"))
LIMIT = float(os.environ.get("UMBEL_DEPLOY_LIMIT", "2"))
RATE = int(os.environ.get("UMBEL_DEPLOY_RATE", "1000"))
BACKENDS = os.environ.get("UMBEL_DEPLOY_ON", "sqlite").split(",")
WORKER_COUNT = 2
NAMES = tuple(f"worker-{index}" for index in range(WORKER_COUNT))
GRACE = 5.0
LEASE = "6"

pytestmark = pytest.mark.parametrize("url", BACKENDS, indirect=True)


class DeployWorkers(Workers):
    """Workers, and commands, of the tasks in ``deploy_tasks``."""

    def __init__(self, url: str, folder: Path, *options: str) -> None:
        super().__init__(url, folder, "--log-format", "json", *options)
        path = [str(HERE), os.environ.get("PYTHONPATH", "")]
        self._environment |= {
            "PYTHONPATH": os.pathsep.join(path).rstrip(os.pathsep),
            "UMBEL_NAMESPACE": "scenario",
        }

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "umbel", "-A", "deploy_tasks:app", *words]

    def start(self, index: int) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [*self.command("worker", "--name", f"worker-{index}"), *self._options],
            env=self._environment,
            stdout=self.log,
            stderr=self.log,
        )
        self._processes[index] = process
        return process

    def start_all(self, client: Client, many: int = WORKER_COUNT) -> None:
        for index in range(many):
            self.start(index)
        until(lambda: len(client.workers()) == many, "all workers to register")

    def deploy(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command("deploy", *words),
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def deployed(self, *words: str) -> tuple[int, str]:
        """Run a command to its end. Return its exit code and output."""
        process = self.deploy(*words)
        output, _ = process.communicate(timeout=180)
        return process.returncode, output


@pytest.fixture
def group(url: str, tmp_path: Path) -> Iterator[DeployWorkers]:
    group = DeployWorkers(
        url, tmp_path, "--lease", LEASE, "--io", "50", "--cpu", "4", "--grace", str(GRACE)
    )
    yield group
    group.end()


def state(client: Client) -> str:
    found = client.ask(lambda operations: operations.deploy.status()).deployment
    return found.state if found is not None else "none"


def done(client: Client, job: str) -> bool:
    return client.record(job).state is State.SUCCEEDED


# --- go is true ------------------------------------------------------------------------------


class Load:
    """A stream of short tasks, with an occasional long one of each kind."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._publish)
        self.published = 0

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _publish(self) -> None:
        turn, next_at = 0, time.monotonic()
        while not self._stop.is_set():
            calls: list[Any] = [tasks.short.s() for _ in range(RATE // 10)]
            if turn % 5 == 0:
                calls.append(tasks.firm.s(FIRM))
            if turn % 50 == 0:
                calls.append(tasks.gentle.s(3.0))
            self.published += len(self._client.publish(calls))
            turn, next_at = turn + 1, max(next_at + 0.1, time.monotonic() - 1)
            self._stop.wait(max(0.0, next_at - time.monotonic()))


def begin_by_command(group: DeployWorkers, names: Sequence[str]) -> dict[str, Any]:
    words = ["--workers", ",".join(names)] if names else []
    code, output = group.deployed("begin", "--limit", "60", "--json", *words)
    assert code == 0, output
    found: dict[str, Any] = json.loads(output)
    return found


def begin_here(client: Client, names: Sequence[str]) -> dict[str, Any]:
    """Do the same without the second that a command takes to start."""

    async def wait(operations: Operations) -> DeployView:
        given: dict[str, Any] = {"who": "test", "host": "here", "pid": os.getpid()}
        plan = DeploymentPlan(id=fresh_id(), workers=tuple(names), **given)
        begun = await operations.deploy.begin(plan)
        return await operations.deploy.wait(begun, interval=20, limit=60, show=lambda _: None)

    found: dict[str, Any] = msgspec.to_builtins(client.ask(wait))
    return found


def test_go_is_reported_only_when_no_uninterruptible_task_runs(
    client: Client, group: DeployWorkers, capsys: pytest.CaptureFixture[str]
) -> None:
    group.start_all(client)
    began, gentle, waited = time.monotonic(), 0, []
    with Load(client) as load:
        until(lambda: tasks.counts(group.traces)[1] > 100, "the stream to flow")
        for gate in range(GATES):
            # In turn of everything, which a claim itself respects, and of all workers by name.
            names = NAMES if gate % 2 else ()
            by_command = gate % COMMANDS == 0
            report = begin_by_command(group, names) if by_command else begin_here(client, names)
            begun, ended = tasks.counts(group.traces)
            assert report["deployment"]["state"] == "go", report
            assert begun == ended, f"gate {gate}: go, and {begun - ended} uninterruptible ones run"
            gentle += sum(len(worker["runs"]) for worker in report["workers"])
            waited.append(report["deployment"]["stood"])
            sent = load.published
            until(lambda sent=sent: load.published > sent, "more to be published", every=0.01)
            assert tasks.counts(group.traces) == (begun, ended), f"gate {gate}: one began after go"
            if by_command:
                code, output = group.deployed("end")
                assert code == 0, output
                assert "Resumed: " in output
            else:
                assert client.ask(lambda operations: operations.deploy.end("test")) is not None
            until(lambda ended=ended: tasks.counts(group.traces)[1] > ended, "work to flow again")
    seconds = time.monotonic() - began
    waited.sort()
    with capsys.disabled():
        print(
            f"\n  {client.url.split(':')[0]}: {GATES} gates in {seconds:.0f} s,"
            f" {load.published} published, {tasks.counts(group.traces)[1]} uninterruptible runs,"
            f" {gentle} interruptible ones ran at go; 0 began after go;"
            f" go after {waited[len(waited) // 2]:.2f} s (median), {waited[-1]:.2f} s (longest)"
        )


# --- not within the limit --------------------------------------------------------------------


def test_tasks_that_exceed_the_limit_are_listed_and_workers_fetch_again(
    client: Client, group: DeployWorkers
) -> None:
    group.start_all(client)
    (long,) = client.publish([tasks.firm.s(600.0)])
    until(lambda: client.record(long).state is State.RUNNING, "it to run")
    worker = client.record(long).worker
    code, output = group.deployed("begin", "--limit", str(LIMIT))
    assert code == 1, output
    assert "Workers fetch again" in output
    assert "firm for" in output
    assert f"on {worker}, job {long[-8:]}" in output.split("Still running")[1]
    assert state(client) == "aborted"
    (short,) = client.publish([tasks.short.s()])
    until(lambda: done(client, short), "work to flow again")


# --- how the command ends --------------------------------------------------------------------


def held_up(client: Client, group: DeployWorkers, *words: str) -> tuple[subprocess.Popen[str], str]:
    """Begin a deployment that waits for an endless task, and publish a job that waits for it."""
    group.start_all(client, 1)
    (long,) = client.publish([tasks.firm.s(600.0)])
    until(lambda: client.record(long).state is State.RUNNING, "it to run")
    begin = group.deploy("begin", *words)
    until(lambda: state(client) == "waiting", "the deployment to begin")
    (short,) = client.publish([tasks.short.s()])
    return begin, short


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_resumes_the_workers_and_is_reported(
    client: Client, group: DeployWorkers, number: signal.Signals
) -> None:
    begin, short = held_up(client, group)
    begin.send_signal(number)
    output, _ = begin.communicate(timeout=60)
    assert begin.returncode == 128 + number, output
    assert f"stopped by {number.name}; workers fetch again" in output
    until(lambda: done(client, short), "work to flow again")


def test_a_command_that_lost_its_terminal_resumes_the_workers(
    client: Client, group: DeployWorkers
) -> None:
    begin, short = held_up(client, group)
    assert begin.stdout is not None
    begin.stdout.close()
    begin.send_signal(signal.SIGHUP)
    assert begin.wait(60) == 128 + signal.SIGHUP
    until(lambda: done(client, short), "work to flow again")


def test_a_closed_output_pipe_is_no_reason_to_report_go(
    client: Client, group: DeployWorkers
) -> None:
    """As in ``umbel deploy begin | head -1``: a failed write must not change the result."""
    begin, short = held_up(client, group, "--limit", "3", "--interval", "0.1")
    assert begin.stdout is not None
    begin.stdout.close()
    assert begin.wait(60) == 1
    assert state(client) == "aborted"
    until(lambda: done(client, short), "work to flow again")


def test_workers_fetch_again_by_themselves_when_the_command_was_killed(
    client: Client, group: DeployWorkers
) -> None:
    begin, short = held_up(client, group)
    begin.kill()
    begin.wait()
    assert state(client) == "waiting"
    until(lambda: done(client, short), "work to flow again")
    assert state(client) == "aborted"


def test_only_one_deployment_runs_at_a_time_and_another_may_take_over(
    client: Client, group: DeployWorkers
) -> None:
    begin, short = held_up(client, group)
    code, output = group.deployed("begin")
    assert code == 4
    assert f"process {begin.pid}" in output
    code, output = group.deployed("end")
    assert code == 4, "it still waits"
    other = group.deploy("begin", "--force")
    output, _ = begin.communicate(timeout=60)
    assert begin.returncode == 4
    assert "took over" in output
    assert not done(client, short)
    code, output = group.deployed("end", "--force")
    assert code == 0
    assert "Resumed: everything" in output
    assert other.wait(60) == 4
    code, output = group.deployed("end")
    assert code == 0, "safe to repeat"
    until(lambda: done(client, short), "work to flow again")


# --- workers that start, stop and freeze -----------------------------------------------------


def test_a_worker_started_meanwhile_fetches_nothing_and_a_frozen_one_does_not_count(
    client: Client, group: DeployWorkers
) -> None:
    group.start_all(client)
    group.signal(0, signal.SIGSTOP)
    try:
        code, output = group.deployed("begin", "--interval", "1")
        assert code == 0, output
        assert "worker-0 (process" in output
        assert "has not answered yet" in output
        assert "has no heartbeat; not counted" in output or "1 worker idle" in output
        jobs = client.publish([tasks.short.s() for _ in range(20)])
        group.start(2)
        until(lambda: "worker-2" in {one.name for one in client.workers()}, "it to register")
        epoch = client.ask(lambda operations: operations.deploy.status()).deployment.epoch
        until(
            lambda: any(w.name == "worker-2" and w.epoch >= epoch for w in client.workers()),
            "the new one to confirm",
        )
        assert {client.record(job).state for job in jobs} == {State.QUEUED}
        assert group.deployed("end")[0] == 0
        until(lambda: all(done(client, job) for job in jobs), "work to flow again")
    finally:
        group.signal(0, signal.SIGCONT)


def test_a_deployment_of_one_worker_leaves_the_others_alone(
    client: Client, group: DeployWorkers
) -> None:
    group.start_all(client)
    code, output = group.deployed("begin", "--workers", "worker-0")
    assert code == 0, output
    jobs = client.publish([tasks.short.s() for _ in range(100)])
    until(lambda: all(done(client, job) for job in jobs), "the other to work")
    assert {client.record(job).worker for job in jobs} == {"worker-1"}
    code, output = group.deployed("end")
    assert "Resumed: worker worker-0" in output
    code, output = group.deployed("begin", "--workers", "worker-7")
    assert code == 2
    assert "worker-7" in output
    assert "worker-0, worker-1" in output


# --- stopping loses nothing ------------------------------------------------------------------


class Supervisor:
    """Stops all workers at once, as supervisors do, and starts them again."""

    def __init__(self, group: DeployWorkers) -> None:
        self._group = group
        self.killed = 0

    def restart_all(self, indexes: Sequence[int]) -> None:
        for index in indexes:
            self._group.signal(index, signal.SIGTERM)
        deadline = time.monotonic() + GRACE + 1.0
        for index in indexes:
            process = self._group.process(index)
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._group.kill(index)
                self.killed += 1
        for index in indexes:
            self._group.start(index)


def test_stopping_all_workers_at_once_loses_no_work_and_costs_no_attempt(
    client: Client, group: DeployWorkers, capsys: pytest.CaptureFixture[str]
) -> None:
    pick = random.Random(7)
    calls: list[Any] = [tasks.stubborn.s(f"m{n}") for n in range(max(1, ROUNDS // 5))]
    for _ in range(JOBS):
        kind = pick.random()
        if kind < 0.9:
            calls.append(tasks.traced.s(pick.uniform(0.05, 0.5)))
        else:
            calls.append(tasks.traced_gentle.s(pick.uniform(0.05, 1.0)))
    published = client.publish(calls)
    supervisor = Supervisor(group)
    group.start_all(client)
    began = time.monotonic()
    for turn in range(ROUNDS):
        begun = sum(trace.what == "start" for trace in Tracer(group.traces).read())
        until(
            lambda begun=begun: (
                client.live() == 0
                or sum(t.what == "start" for t in Tracer(group.traces).read()) > begun
            ),
            f"work to flow in round {turn}",
        )
        supervisor.restart_all(range(WORKER_COUNT))
    until(lambda: client.live() == 0, "all jobs to finish", seconds=600, every=0.5)
    traces = Tracer(group.traces).read()
    records = {record.id: record for record in client.records()}
    assert {records[job].state for job in published} == {State.SUCCEEDED}
    starts = Counter(trace.job for trace in traces if trace.what == "start")
    ends = Counter(trace.job for trace in traces if trace.what == "end")
    interrupted = [
        record
        for record in records.values()
        if record.task == "traced_gentle" and any(a.ended == "interrupted" for a in record.attempts)
    ]
    for record in records.values():
        if record.task == "traced":
            assert (starts[record.id], ends[record.id]) == (1, 1), (
                f"{record.id} must not be interrupted, nor run twice: {record.attempts}"
            )
        if record.task != "stubborn":
            assert record.attempt == 1, "stopping a worker costs no attempt"
    with capsys.disabled():
        print(
            f"\n  {client.url.split(':')[0]}: {ROUNDS} restarts of {WORKER_COUNT} workers in"
            f" {time.monotonic() - began:.0f} s, {supervisor.killed} killed after their grace;"
            f" {len(published)} jobs, all succeeded; {len(interrupted)} interruptible ones were"
            f" interrupted, {sum(starts.values())} starts"
        )
    assert supervisor.killed, "no worker was killed: the test proved less than it should"
