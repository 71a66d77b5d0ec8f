"""Deployments with real processes: "go" is true; whoever is killed, nothing is lost or left paused.

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
from desk import Client
from processes import HERE, Workers, until

from umbel import State
from umbel.backends import DeploymentPlan
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
PLACES = os.environ.get("UMBEL_DEPLOY_ON", "sqlite").split(",")
CREW = 2
NAMES = tuple(f"worker-{index}" for index in range(CREW))
GRACE = 5.0
LEASE = "6"

pytestmark = pytest.mark.parametrize("url", PLACES, indirect=True)


class Crew(Workers):
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

    def start_all(self, desk: Client, many: int = CREW) -> None:
        for index in range(many):
            self.start(index)
        until(lambda: len(desk.workers()) == many, "the crew to register")

    def deploy(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command("deploy", *words),
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def deployed(self, *words: str) -> tuple[int, str]:
        """A whole command: its exit code and what it said."""
        process = self.deploy(*words)
        said, _ = process.communicate(timeout=180)
        return process.returncode, said


@pytest.fixture
def crew(url: str, tmp_path: Path) -> Iterator[Crew]:
    crew = Crew(url, tmp_path, "--lease", LEASE, "--io", "50", "--cpu", "4", "--grace", str(GRACE))
    yield crew
    crew.end()


def state(desk: Client) -> str:
    found = desk.ask(lambda operations: operations.deploy.status()).deployment
    return found.state if found is not None else "none"


def done(desk: Client, job: str) -> bool:
    return desk.record(job).state is State.SUCCEEDED


# --- go is true ------------------------------------------------------------------------------


class Load:
    """A stream of short tasks, and now and then a long one of each kind."""

    def __init__(self, desk: Client) -> None:
        self._desk = desk
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
            self.published += len(self._desk.publish(calls))
            turn, next_at = turn + 1, max(next_at + 0.1, time.monotonic() - 1)
            self._stop.wait(max(0.0, next_at - time.monotonic()))


def begin_by_command(crew: Crew, names: Sequence[str]) -> dict[str, Any]:
    words = ["--workers", ",".join(names)] if names else []
    code, said = crew.deployed("begin", "--limit", "60", "--json", *words)
    assert code == 0, said
    found: dict[str, Any] = json.loads(said)
    return found


def begin_here(desk: Client, names: Sequence[str]) -> dict[str, Any]:
    """The same without the second that a command takes to start."""

    async def wait(operations: Operations) -> DeployView:
        given: dict[str, Any] = {"who": "test", "host": "here", "pid": os.getpid()}
        plan = DeploymentPlan(id=fresh_id(), workers=tuple(names), **given)
        begun = await operations.deploy.begin(plan)
        return await operations.deploy.wait(begun, interval=20, limit=60, show=lambda _: None)

    found: dict[str, Any] = msgspec.to_builtins(desk.ask(wait))
    return found


def test_go_is_said_only_when_it_is_true(
    desk: Client, crew: Crew, capsys: pytest.CaptureFixture[str]
) -> None:
    crew.start_all(desk)
    began, gentle, waited = time.monotonic(), 0, []
    with Load(desk) as load:
        until(lambda: tasks.counts(crew.traces)[1] > 100, "the stream to flow")
        for gate in range(GATES):
            # In turn of everything, which a claim itself respects, and of all workers by name.
            names = NAMES if gate % 2 else ()
            by_command = gate % COMMANDS == 0
            told = begin_by_command(crew, names) if by_command else begin_here(desk, names)
            begun, ended = tasks.counts(crew.traces)
            assert told["deployment"]["state"] == "go", told
            assert begun == ended, f"gate {gate}: go, and {begun - ended} uninterruptible ones run"
            gentle += sum(len(worker["runs"]) for worker in told["workers"])
            waited.append(told["deployment"]["stood"])
            sent = load.published
            until(lambda sent=sent: load.published > sent, "more to be published", every=0.01)
            assert tasks.counts(crew.traces) == (begun, ended), f"gate {gate}: one began after go"
            if by_command:
                code, said = crew.deployed("end")
                assert code == 0, said
                assert "Resumed: " in said
            else:
                assert desk.ask(lambda operations: operations.deploy.end("test")) is not None
            until(lambda ended=ended: tasks.counts(crew.traces)[1] > ended, "work to flow again")
    seconds = time.monotonic() - began
    waited.sort()
    with capsys.disabled():
        print(
            f"\n  {desk.url.split(':')[0]}: {GATES} gates in {seconds:.0f} s,"
            f" {load.published} published, {tasks.counts(crew.traces)[1]} uninterruptible runs,"
            f" {gentle} interruptible ones ran at go; 0 began after go;"
            f" go after {waited[len(waited) // 2]:.2f} s (median), {waited[-1]:.2f} s (longest)"
        )


# --- not within the limit --------------------------------------------------------------------


def test_what_takes_too_long_is_listed_and_workers_go_on(desk: Client, crew: Crew) -> None:
    crew.start_all(desk)
    (long,) = desk.publish([tasks.firm.s(600.0)])
    until(lambda: desk.record(long).state is State.RUNNING, "it to run")
    worker = desk.record(long).worker
    code, said = crew.deployed("begin", "--limit", str(LIMIT))
    assert code == 1, said
    assert "Workers fetch again" in said
    assert "firm for" in said
    assert f"on {worker}, job {long}" in said.split("Still running")[1]
    assert state(desk) == "aborted"
    (short,) = desk.publish([tasks.short.s()])
    until(lambda: done(desk, short), "work to flow again")


# --- who ends the command --------------------------------------------------------------------


def held_up(desk: Client, crew: Crew, *words: str) -> tuple[subprocess.Popen[str], str]:
    """A deployment that waits for a task without end, and a job that waits for the deployment."""
    crew.start_all(desk, 1)
    (long,) = desk.publish([tasks.firm.s(600.0)])
    until(lambda: desk.record(long).state is State.RUNNING, "it to run")
    begin = crew.deploy("begin", *words)
    until(lambda: state(desk) == "waiting", "the deployment to begin")
    (short,) = desk.publish([tasks.short.s()])
    return begin, short


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_resumes_the_workers_and_says_so(
    desk: Client, crew: Crew, number: signal.Signals
) -> None:
    begin, short = held_up(desk, crew)
    begin.send_signal(number)
    said, _ = begin.communicate(timeout=60)
    assert begin.returncode == 128 + number, said
    assert f"stopped by {number.name}; workers fetch again" in said
    until(lambda: done(desk, short), "work to flow again")


def test_a_command_whose_terminal_is_gone_resumes_the_workers(desk: Client, crew: Crew) -> None:
    begin, short = held_up(desk, crew)
    assert begin.stdout is not None
    begin.stdout.close()
    begin.send_signal(signal.SIGHUP)
    assert begin.wait(60) == 128 + signal.SIGHUP
    until(lambda: done(desk, short), "work to flow again")


def test_nobody_who_reads_is_no_reason_to_say_go(desk: Client, crew: Crew) -> None:
    """As in ``umbel deploy begin | head -1``: what cannot be written is not what decides."""
    begin, short = held_up(desk, crew, "--limit", "3", "--interval", "0.1")
    assert begin.stdout is not None
    begin.stdout.close()
    assert begin.wait(60) == 1
    assert state(desk) == "aborted"
    until(lambda: done(desk, short), "work to flow again")


def test_workers_fetch_again_by_themselves_when_the_command_was_killed(
    desk: Client, crew: Crew
) -> None:
    begin, short = held_up(desk, crew)
    begin.kill()
    begin.wait()
    assert state(desk) == "waiting"
    until(lambda: done(desk, short), "work to flow again")
    assert state(desk) == "aborted"


def test_only_one_deploys_at_a_time_and_another_may_take_over(desk: Client, crew: Crew) -> None:
    begin, short = held_up(desk, crew)
    code, said = crew.deployed("begin")
    assert code == 4
    assert f"process {begin.pid}" in said
    code, said = crew.deployed("end")
    assert code == 4, "it still waits"
    other = crew.deploy("begin", "--force")
    said, _ = begin.communicate(timeout=60)
    assert begin.returncode == 4
    assert "took over" in said
    assert not done(desk, short)
    code, said = crew.deployed("end", "--force")
    assert code == 0
    assert "Resumed: everything" in said
    assert other.wait(60) == 4
    code, said = crew.deployed("end")
    assert code == 0, "safe to repeat"
    until(lambda: done(desk, short), "work to flow again")


# --- workers that come, go and freeze --------------------------------------------------------


def test_who_starts_meanwhile_fetches_nothing_and_who_is_frozen_does_not_count(
    desk: Client, crew: Crew
) -> None:
    crew.start_all(desk)
    crew.signal(0, signal.SIGSTOP)
    try:
        code, said = crew.deployed("begin", "--interval", "1")
        assert code == 0, said
        assert "worker-0 (process" in said
        assert "has not answered yet" in said
        assert "has no heartbeat; not counted" in said or "1 worker idle" in said
        jobs = desk.publish([tasks.short.s() for _ in range(20)])
        crew.start(2)
        until(lambda: "worker-2" in {one.name for one in desk.workers()}, "it to register")
        epoch = desk.ask(lambda operations: operations.deploy.status()).deployment.epoch
        until(
            lambda: any(w.name == "worker-2" and w.epoch >= epoch for w in desk.workers()),
            "the new one to confirm",
        )
        assert {desk.record(job).state for job in jobs} == {State.QUEUED}
        assert crew.deployed("end")[0] == 0
        until(lambda: all(done(desk, job) for job in jobs), "work to flow again")
    finally:
        crew.signal(0, signal.SIGCONT)


def test_a_deployment_of_one_worker_leaves_the_others_alone(desk: Client, crew: Crew) -> None:
    crew.start_all(desk)
    code, said = crew.deployed("begin", "--workers", "worker-0")
    assert code == 0, said
    jobs = desk.publish([tasks.short.s() for _ in range(100)])
    until(lambda: all(done(desk, job) for job in jobs), "the other to work")
    assert {desk.record(job).worker for job in jobs} == {"worker-1"}
    code, said = crew.deployed("end")
    assert "Resumed: worker worker-0" in said
    code, said = crew.deployed("begin", "--workers", "worker-7")
    assert code == 2
    assert "worker-7" in said
    assert "worker-0, worker-1" in said


# --- stopping loses nothing ------------------------------------------------------------------


class Supervisor:
    """Stops all workers at once as supervisors do, and starts them again."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self.killed = 0

    def restart_all(self, indexes: Sequence[int]) -> None:
        for index in indexes:
            self._crew.signal(index, signal.SIGTERM)
        deadline = time.monotonic() + GRACE + 1.0
        for index in indexes:
            process = self._crew.process(index)
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._crew.kill(index)
                self.killed += 1
        for index in indexes:
            self._crew.start(index)


def test_stopping_all_workers_at_once_loses_no_work_and_costs_no_attempt(
    desk: Client, crew: Crew, capsys: pytest.CaptureFixture[str]
) -> None:
    pick = random.Random(7)
    calls: list[Any] = [tasks.stubborn.s(f"m{n}") for n in range(max(1, ROUNDS // 5))]
    for _ in range(JOBS):
        kind = pick.random()
        if kind < 0.9:
            calls.append(tasks.traced.s(pick.uniform(0.05, 0.5)))
        else:
            calls.append(tasks.traced_gentle.s(pick.uniform(0.05, 1.0)))
    published = desk.publish(calls)
    supervisor = Supervisor(crew)
    crew.start_all(desk)
    began = time.monotonic()
    for turn in range(ROUNDS):
        begun = sum(trace.what == "start" for trace in Tracer(crew.traces).read())
        until(
            lambda begun=begun: (
                desk.live() == 0
                or sum(t.what == "start" for t in Tracer(crew.traces).read()) > begun
            ),
            f"work to flow in round {turn}",
        )
        supervisor.restart_all(range(CREW))
    until(lambda: desk.live() == 0, "all jobs to finish", seconds=600, every=0.5)
    traces = Tracer(crew.traces).read()
    records = {record.id: record for record in desk.records()}
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
            f"\n  {desk.url.split(':')[0]}: {ROUNDS} restarts of {CREW} workers in"
            f" {time.monotonic() - began:.0f} s, {supervisor.killed} killed after their grace;"
            f" {len(published)} jobs, all succeeded; {len(interrupted)} interruptible ones were"
            f" interrupted, {sum(starts.values())} starts"
        )
    assert supervisor.killed, "nobody was killed: the test proved less than it should"
