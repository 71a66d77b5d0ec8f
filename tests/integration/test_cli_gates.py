"""``umbel limits`` and ``umbel pools`` as people and scripts use them, in real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.command_line import Shell, wait_until
from umbel.cli.entry import run

TASKS = """
import asyncio, os
from umbel import Limit, Rate, Umbel, current

app = Umbel()
app.queue("bulk", limit=10)
executors = app.pool("executors", members={"a": {"port": 1}, "b": {"port": 2}})
empty = app.pool("empty")

async def end():
    while not os.path.exists("end"):
        await asyncio.sleep(0.01)

@app.task(limit=[Limit(1, token="tenant"), 4])
async def mail(tenant: str) -> None:
    await end()

@app.task(limit=2)
async def report() -> None:
    await end()

@app.task(rate=["200/m", Rate("10/45s", burst=5)])
async def ask() -> None: ...

@app.task(rate="1/d")
async def slow() -> None: ...

@app.task(limit=[Limit(3, per="worker"), Limit(1, token="tenant", per="worker")])
async def local(tenant: str) -> None: ...

@app.task(rate=Rate("5/s", per="worker"))
async def paced() -> None: ...

@app.task(pool=executors)
async def evaluate() -> dict:
    await end()
    return {"member": current.lease.member} | current.lease.data

@app.task(pool=empty)
async def starve() -> str:
    return current.lease.member
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    (tmp_path / "tasks.py").write_text(TASKS)
    return shell


@pytest.fixture
def known(shell: Shell) -> Iterator[Shell]:
    """A shell and a worker that has declared its gates."""
    with shell.worker():
        yield shell


def limits(shell: Shell, *names: str) -> dict[str, Any]:
    return {view["gate"]: view for view in shell.ask("limits", "list", *names)}


def members(shell: Shell, pool: str = "executors") -> dict[str, Any]:
    (view,) = shell.ask("pools", "list", pool)
    return {member["name"]: member for member in view["members"]}


def refused(shell: Shell, code: int, *words: str) -> str:
    """Return the error of a command that changes nothing."""
    done = shell.run(*words, "--json")
    assert (done.returncode, done.stdout) == (code, ""), done.stdout + done.stderr
    told = json.loads(done.stderr)["error"]
    assert told["exit_code"] == code
    return str(told["message"])


# --- limits ----------------------------------------------------------------------------------


def test_limits_show_what_they_allow_who_holds_them_and_who_waits(known: Shell) -> None:
    for tenant in ("acme", "acme", "acme", "globex"):
        known.say("send", "mail", tenant)
    wait_until(lambda: limits(known).get("limit:tasks.mail/tenant#acme", {}).get("held") == 1)
    wait_until(lambda: limits(known)["limit:tasks.mail"]["held"] == 2)
    found = limits(known)
    acme = found["limit:tasks.mail/tenant#acme"]
    assert (acme["capacity"], acme["held"], acme["waiting"]) == (1, 1, 2)
    assert found["limit:tasks.mail/tenant"]["each_token"] is True
    assert found["rate:tasks.ask"]["rates"] == [[200, 60.0]]
    assert not any(gate.startswith("pool:") for gate in found)
    told = [line.split() for line in known.say("limits").splitlines()]
    for line in (
        "limit:@bulk 10 at once 0 0",
        "limit:tasks.mail/tenant 1 at once, each token 0 0",
        "limit:tasks.mail/tenant#acme 1 at once 1 2",
        "rate:tasks.ask 200/m 0 0",
        "rate:tasks.ask/burst-5 10/45s 0 0",
    ):
        assert line.split() in told
    assert [*limits(known, "report")] == ["limit:tasks.report"]
    assert [*limits(known, "ask")] == ["rate:tasks.ask", "rate:tasks.ask/burst-5"]
    assert [*limits(known, "@bulk")] == ["limit:@bulk"]
    assert "no limit or rate of nobody" in known.say("limits", "list", "nobody")


def test_without_any_limit_the_answer_says_where_they_come_from(shell: Shell) -> None:
    assert "A worker declares those of its tasks" in shell.say("limits")
    assert shell.ask("limits") == []


def test_a_limit_is_set_above_the_code_and_reset(known: Shell) -> None:
    jobs = [known.say("send", "report") for _ in range(4)]
    wait_until(lambda: limits(known)["limit:tasks.report"]["held"] == 2)
    told = known.ask("limits", "set", "report", "3")
    assert told == {"limit": "limit:tasks.report", "capacity": 3, "imposed": True}
    wait_until(lambda: limits(known)["limit:tasks.report"]["held"] == 3)
    said = known.say("limits", "set", "report", "0")
    assert "limit:tasks.report: 0 at once, set by an operator" in said
    assert "0 at once, set by an operator" in known.say("limits", "list", "tasks.report")
    assert limits(known)["limit:tasks.report"]["held"] == 3, "what runs goes on"
    assert "2 at once, as declared in the code" in known.say(
        "limits", "reset", "limit:tasks.report"
    )
    assert known.ask("limits", "reset", "report")["imposed"] is False, "twice is fine"
    (known.folder / "end").touch()
    wait_until(lambda: {known.ask("jobs", "show", job)["state"] for job in jobs} == {"succeeded"})


def test_an_operators_limit_remains_after_the_workers_stop(shell: Shell) -> None:
    with shell.worker():
        shell.say("limits", "set", "tasks.report", "7")
    with shell.worker():
        found = limits(shell)["limit:tasks.report"]
        assert (found["capacity"], found["imposed"]) == (7, True)


def test_a_limit_with_tokens_is_set_for_each_of_them(known: Shell) -> None:
    told = known.say("limits", "set", "mail/tenant", "2")
    assert told == "limit:tasks.mail/tenant: 2 at once for each token, set by an operator"
    for _ in range(3):
        known.say("send", "mail", "acme")
    wait_until(lambda: limits(known)["limit:tasks.mail/tenant#acme"]["held"] == 2)


def test_a_name_that_is_two_limits_asks_back(known: Shell) -> None:
    told = refused(known, 2, "limits", "set", "mail", "3")
    assert "limit:tasks.mail and limit:tasks.mail/tenant" in told
    assert "give the full name" in told
    assert known.ask("limits", "set", "limit:tasks.mail", "3")["capacity"] == 3


@pytest.mark.parametrize("number", ["-1", "1.5", "many", "1000000001", "9" * 5000, "1_0", "٣"])
def test_a_number_that_is_none_is_refused_with_what_to_write(
    number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["limits", "set", "report", number, "--json"]) == 2
    told = json.loads(capsys.readouterr().err)["error"]["message"]
    assert told.startswith("N: ")
    assert "from 0 to 1,000,000,000" in told


def test_what_is_no_limit_is_not_set(known: Shell) -> None:
    assert "known limits: limit:@bulk" in refused(known, 1, "limits", "set", "nobody", "3")
    told = refused(known, 2, "limits", "set", "rate:tasks.ask", "3")
    assert "a rate: give how many in which time, as 10/s or 200/m" in told
    assert "a limit: give a whole number" in refused(known, 2, "limits", "set", "report", "3/s")
    assert "known rates: rate:tasks.ask" in refused(known, 1, "limits", "set", "nobody", "3/s")
    told = refused(known, 2, "limits", "set", "limit:tasks.mail/tenant#acme", "3")
    assert "Set limit:tasks.mail/tenant, or pause this token: umbel pause --gate" in told
    told = refused(known, 1, "limits", "reset", "executors")
    assert "there is no limit or rate 'executors'" in told


@pytest.mark.parametrize("rate", ["0/s", "10/", "10/fortnight", "/s", "10/s,", "-1/s"])
def test_a_rate_that_is_none_is_refused_with_what_to_write(
    rate: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["limits", "set", "ask", rate, "--json"]) == 2
    told = json.loads(capsys.readouterr().err)["error"]["message"]
    assert told.startswith("rate=")
    assert 'as "10/s", "200/m", "500/h", "1/30s"' in told


def test_a_rate_is_set_above_the_code_and_reset_and_jobs_start_at_once(shell: Shell) -> None:
    with shell.worker():
        jobs = [shell.say("send", "slow") for _ in range(3)]
        wait_until(lambda: shell.ask("jobs", "show", jobs[0])["state"] == "succeeded")
        assert shell.ask("jobs", "show", jobs[1])["state"] == "waiting"
        told = shell.ask("limits", "set", "slow", "100/s, 5000/m")
        expected = {"rate": "rate:tasks.slow", "rates": [[100, 1.0], [5000, 60.0]], "imposed": True}
        assert told == expected
        wait_until(lambda: {shell.ask("jobs", "show", j)["state"] for j in jobs} == {"succeeded"})
        listed = shell.say("limits", "list", "slow").splitlines()[1]
        assert " ".join(listed.split()[:7]) == "rate:tasks.slow 100/s, 5000/m, set by an operator"
    with shell.worker():
        found = limits(shell)["rate:tasks.slow"]
        assert (found["rates"], found["imposed"]) == ([[100, 1.0], [5000, 60.0]], True)
        told = shell.say("limits", "reset", "slow")
        assert told == "rate:tasks.slow: 1/d, as declared in the code"
        assert shell.ask("limits", "reset", "slow")["imposed"] is False, "twice is fine"
        found = limits(shell)["rate:tasks.slow"]
        assert (found["rates"], found["imposed"]) == ([[1, 86_400.0]], False)


def test_limits_that_each_worker_applies_are_shown_and_cannot_be_set(known: Shell) -> None:
    found = limits(known, "local")
    assert [*found] == ["worker-limit:tasks.local", "worker-limit:tasks.local/tenant"]
    shown = found["worker-limit:tasks.local"]
    assert (shown["capacity"], shown["per"], shown["each_token"]) == (3, "worker", False)
    paced = limits(known)["worker-rate:tasks.paced"]
    assert (paced["rates"], paced["per"]) == ([[5, 1.0]], "worker")
    assert limits(known)["limit:tasks.report"]["per"] == "cluster"
    told = [line.split() for line in known.say("limits").splitlines()]
    for line in (
        "worker-limit:tasks.local 3 at once, each worker",
        "worker-limit:tasks.local/tenant 1 at once, each token, each worker",
        "worker-rate:tasks.paced 5/s, each worker",
    ):
        assert line.split() in told
    told_why = refused(known, 2, "limits", "set", "worker-limit:tasks.local", "9")
    assert "which each worker applies by itself: change it in the code" in told_why
    told_why = refused(known, 2, "pause", "--gate", "worker-limit:tasks.local")
    assert "Pause the task" in told_why


def test_a_limit_that_no_worker_has_declared_is_reported_as_such(shell: Shell) -> None:
    told = refused(shell, 1, "limits", "set", "report", "3")
    assert "limit:tasks.report is not in the store yet" in told
    assert "Start a worker, then set the limit" in told


# --- waiting ---------------------------------------------------------------------------------


def test_jobs_that_wait_are_counted_and_listed_as_such(known: Shell) -> None:
    job = known.say("send", "starve")
    wait_until(lambda: known.ask("jobs", "show", job)["state"] == "waiting")
    (queue,) = [view for view in known.ask("queues") if view["name"] == "default"]
    assert (queue["queued"], queue["waiting"]) == (0, 1)
    assert known.say("queues").split()[:3] == ["queue", "queued", "waiting"]
    assert [one["id"] for one in known.ask("jobs", "list", "--state", "waiting")] == [job]
    assert job[-8:] in known.say("jobs", "list", "--state", "waiting")
    assert "waiting" in known.say("jobs", "show", job)
    assert known.say("jobs", "cancel", job) == f"{job}  cancelled"


def test_a_job_shows_what_it_waits_for_and_who_is_before_it(known: Shell) -> None:
    gate = "limit:tasks.mail/tenant#acme"
    jobs = [known.say("send", "mail", "acme") for _ in range(3)]
    wait_until(lambda: known.ask("jobs", "show", jobs[0])["state"] == "running")
    found = [known.ask("jobs", "show", job) for job in jobs[1:]]
    assert [(one["gate"], one["ahead"]) for one in found] == [(gate, 0), (gate, 1)]
    assert [one["waiting_since"] for one in found] == [one["created"] for one in found]
    assert f"waiting at  {gate}   0 jobs before it, for " in known.say("jobs", "show", jobs[1])
    assert f"waiting at  {gate}   1 job before it, for " in known.say("jobs", "show", jobs[2])
    listed = known.say("jobs", "list", "--state", "waiting").splitlines()
    assert [line.endswith(f"at {gate}") for line in listed[1:]] == [True, True]
    first = known.ask("jobs", "show", jobs[0])
    assert (first["gate"], first["ahead"], first["waiting_since"]) == (None, None, None)
    assert first["slots"] == [{"gate": gate}, {"gate": "limit:tasks.mail"}]


def test_a_job_shows_the_member_it_holds_until_it_ends(known: Shell) -> None:
    job = known.say("send", "evaluate")
    wait_until(lambda: known.ask("jobs", "show", job)["state"] == "running")
    told = known.ask("jobs", "show", job)
    assert told["slots"] == [
        {"gate": "pool:executors", "member": "a", "fence": 1, "data": {"port": 1}}
    ]
    assert "holds       a of pool:executors (fence 1)" in known.say("jobs", "show", job)
    assert "waiting at" not in known.say("jobs", "show", job)
    (known.folder / "end").touch()
    wait_until(lambda: known.ask("jobs", "show", job)["state"] == "succeeded")
    assert known.ask("jobs", "show", job)["slots"] == []
    assert "holds" not in known.say("jobs", "show", job)
    (attempt,) = known.ask("jobs", "show", job)["attempts"]
    assert attempt["members"] == {"executors": "a"}
    assert "  with a of pool executors" in known.say("jobs", "show", job)


def test_a_queue_where_jobs_wait_and_no_worker_is_there_is_not_healthy(shell: Shell) -> None:
    shell.say("send", "starve", "--queue", "lonely")
    assert shell.ask("jobs", "list")[0]["state"] == "waiting"
    with shell.worker():
        done = shell.run("health")
        assert (done.returncode, "no worker serves lonely" in done.stdout) == (1, True)


# --- pools -----------------------------------------------------------------------------------


def test_pools_show_who_holds_what_and_who_waits(known: Shell) -> None:
    jobs = [known.say("send", "evaluate") for _ in range(3)]
    wait_until(lambda: {m["job"] for m in members(known).values()} == {*jobs[:2]})
    (view,) = known.ask("pools", "list", "executors")
    assert (view["name"], view["waiting"], view["paused"]) == ("executors", 1, False)
    assert view["members"][0]["data"] == {"port": 1}
    told = known.say("pools")
    assert f"executors        1  a           1  held by {jobs[0][-8:]}" in told
    assert "empty            0                 no member" in told
    assert known.say("pools", "list").splitlines() == told.splitlines()


def test_without_any_pool_the_answer_says_where_they_come_from(shell: Shell) -> None:
    assert "A worker declares the pools of its code" in shell.say("pools")
    assert shell.ask("pools") == []


def test_a_member_is_added_with_data_and_stays(shell: Shell) -> None:
    with shell.worker():
        job = shell.say("send", "starve")
        told = shell.ask("pools", "add", "empty", "x", "--data", '{"port": 3}')
        assert told == {"pool": "empty", "state": "added", "members": ["x"]}
        wait_until(lambda: shell.ask("jobs", "show", job)["result"] == "x")
        assert shell.say("pools", "add", "empty", "x", "y") == "x, y added to pool empty"
    with shell.worker():
        assert {name: m["data"] for name, m in members(shell, "empty").items()} == {
            "x": {"port": 3},
            "y": {},
        }


def test_members_are_drained_made_ready_and_removed(shell: Shell) -> None:
    with shell.worker():
        first = shell.say("send", "evaluate")
        wait_until(lambda: members(shell)["a"]["job"] == first)
        told = shell.say("pools", "drain", "executors", "a", "b")
        assert f"a of pool executors drained; job {first} keeps it until it ends" in told
        assert "b of pool executors drained" in told
        assert f"drained, held by {first[-8:]}" in shell.say("pools")
        second = shell.say("send", "evaluate")
        assert shell.ask("jobs", "show", second)["state"] == "waiting"
        told = shell.ask("pools", "ready", "executors", "b")
        assert told == {"pool": "executors", "state": "ready", "members": ["b"]}
        wait_until(lambda: members(shell)["b"]["job"] == second)
        assert "keeps it until it ends" in shell.say("pools", "remove", "executors", "a")
        assert "umbel pools add executors a" in refused(
            shell, 1, "pools", "ready", "executors", "a"
        )
        (shell.folder / "end").touch()
        wait_until(lambda: [*members(shell)] == ["b"])
    with shell.worker():
        assert [*members(shell)] == ["b"], "the code names it, but an operator removed it"
        shell.say("pools", "add", "executors", "a")
        assert [*members(shell)] == ["a", "b"]


@pytest.mark.parametrize("verb", ["remove", "drain", "ready"])
def test_unknown_members_are_named_with_the_existing_ones(known: Shell, verb: str) -> None:
    before = members(known)
    told = refused(known, 1, "pools", verb, "executors", "a", "x", "y")
    assert told == "pool executors has no member x, y; its members: a, b"
    assert members(known) == before, "nothing is done by halves"
    told = refused(known, 1, "pools", verb, "nothing", "a")
    assert "there is no pool 'nothing'; known pools: empty, executors" in told
    assert "it has no members" in refused(known, 1, "pools", verb, "empty", "a")
    assert refused(known, 2, "pools", verb, "executors")


def test_a_member_that_cannot_be_is_not_added(known: Shell) -> None:
    assert "no pool 'nothing'" in refused(known, 1, "pools", "add", "nothing", "x")
    assert "no pool 'nothing'" in refused(known, 1, "pools", "list", "nothing")
    for data in ("[1]", "x", '{"a": "\\u0000"}', '{"a":' * 5000):
        assert "--data: give a JSON object" in refused(
            known, 2, "pools", "add", "executors", "x", "--data", data
        )
    assert "'NAME…' is empty" in refused(known, 2, "pools", "add", "executors", "")
    assert "listed twice" in refused(known, 2, "pools", "add", "executors", "x", "x")
    assert [*members(known)] == ["a", "b"]


# --- pausing a gate --------------------------------------------------------------------------


def test_a_paused_gate_stops_its_token_alone(known: Shell) -> None:
    gate = "limit:tasks.mail/tenant#acme"
    told = known.ask("pause", "--gate", gate, "--reason", "too much")
    assert (told["scope"], told["name"], told["state"]) == ("gate", gate, "paused")
    acme, globex = known.say("send", "mail", "acme"), known.say("send", "mail", "globex")
    wait_until(lambda: known.ask("jobs", "show", globex)["state"] == "running")
    assert known.ask("jobs", "show", acme)["state"] == "waiting"
    assert limits(known)[gate]["paused"] is True
    assert known.say("limits", "list", "mail").count("paused") == 1
    assert known.ask("pause", "report")["also_paused"] == [{"scope": "gate", "name": gate}]
    assert f"Still paused: gate {gate}" in known.say("resume", "report")
    assert known.say("resume", gate).startswith(f"gate {gate} resumed")
    wait_until(lambda: known.ask("jobs", "show", acme)["state"] == "running")


def test_a_gate_is_shown_as_paused_while_no_job_waits(known: Shell) -> None:
    gate = "limit:tasks.mail/tenant#acme"
    known.say("pause", "--gate", gate)
    assert limits(known)[gate]["paused"] is True
    known.say("pause", "--gate", "pool:executors")
    assert known.ask("pools", "list", "executors")[0]["paused"] is True
    assert "ready, paused" in known.say("pools")
    known.say("resume", "--gate", "pool:executors")
    known.say("resume", "--gate", gate)
    assert gate not in limits(known)


def test_a_gate_that_cannot_be_is_not_paused(known: Shell) -> None:
    for gate, says in (
        ("limit:tasks.mial", "did you mean limit:tasks.mail"),
        ("", "'--gate' is empty"),
        ("acme", "no worker has declared it"),
        ("limit:tasks.mail/tenant", "Give one of them, limit:tasks.mail/tenant#TOKEN"),
        ("limit:tasks.report#x", "give --gate limit:tasks.report"),
        ("pool:executors#a", "give --gate pool:executors"),
    ):
        assert says in refused(known, 2, "pause", "--gate", gate)
    assert "give --gate limit:tasks.report" in refused(known, 2, "pause", "limit:tasks.report")
    assert "give only one of" in refused(known, 2, "pause", "mail", "--gate", "limit:tasks.mail")
    assert known.ask("resume")["also_paused"] == []


def test_the_new_commands_are_completed(shell: Shell) -> None:
    for typed, wanted in (("umbel li", "limits"), ("umbel pools dr", "drain")):
        words = typed.split()
        done = shell.run(
            app=None,
            _UMBEL_COMPLETE="bash_complete",
            COMP_WORDS=typed,
            COMP_CWORD=str(len(words) - 1),
        )
        assert wanted in done.stdout
