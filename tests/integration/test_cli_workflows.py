"""``umbel workflows`` and ``umbel graphs`` for runs of workflows, in real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from integration.command_line import Shell, wait_until
from umbel import Umbel
from umbel.graphs import Graph

TASKS = '''
import os, time
from umbel import Signal, Umbel

app = Umbel()

@app.task
def reserve(order: dict) -> str:
    while os.path.exists("held"):
        time.sleep(0.01)
    return f"stock of {order['id']}"

@app.task
def free(stock: str) -> None:
    pass

@app.task(retry=0)
def ship(stock: str, approved: bool) -> str:
    if os.path.exists("broken"):
        raise ValueError("cannot ship")
    return f"shipped, {approved}"

@app.workflow(name="shop.fulfil", deadline=3600, limit=2)
def fulfil(order: dict):
    """Fulfil an order."""
    stock = reserve.s(order).compensate(free.s())
    return ship.s(stock, Signal("approved", type=bool).after(stock))
'''


@pytest.fixture
def shop(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    (tmp_path / "tasks.py").write_text(TASKS)
    return shell


def refused(shell: Shell, code: int, text: str, *words: str) -> None:
    """A command fails with this code and text, and as JSON with --json."""
    done = shell.run(*words)
    assert (done.returncode, done.stdout) == (code, ""), done.stdout + done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def graph(shell: Shell, run: str) -> Graph:
    """Return a run, read by this process: a test waits for it without starting commands."""
    app = Umbel(f"sqlite:///{shell.folder}/umbel.db", deadline=30)
    try:
        found: Graph = app.handle(run).graph
        return found
    finally:
        app.close()


def nodes(shell: Shell, run: str) -> dict[str, str]:
    return {node.path: str(node.state) for node in graph(shell, run).nodes}


def ended(shell: Shell, run: str) -> str:
    """Wait until a run has ended, and return its state."""
    wait_until(lambda: graph(shell, run).state.finished)
    return str(graph(shell, run).state)


def test_a_declared_workflow_is_listed_shown_and_drawn(shop: Shell) -> None:
    (row,) = shop.ask("workflows")
    assert (row["workflow"], row["origin"]) == ("shop.fulfil", "declared")
    assert (row["running"], row["ended"]) == (0, 0)
    text = shop.say("workflows", "show", "fulfil")
    assert f"shop.fulfil(order: dict)\nversion {row['version']}\n" in text
    assert "deadline 3600 s" in text
    assert "limit 2 active runs" in text
    shown = {line[0].strip(): line for line in shop.ask("workflows", "show", "fulfil")["nodes"]}
    assert [*shown] == ["place", "reserve", "approved", "ship"]
    assert shown["approved"][1:] == ["signal approved", "reserve"]
    assert "reserve" in shown["ship"][2]
    drawn = shop.ask("workflows", "draw", "shop.fulfil")["mermaid"]
    assert drawn.startswith("flowchart")
    assert drawn.count("-->") == 3  # place, reserve, approved, ship


def test_a_run_is_started_signalled_undone_and_retried(shop: Shell, tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    with shop.worker():
        run = shop.ask("workflows", "start", "fulfil", '{"id": 1}')["id"]
        wait_until(lambda: nodes(shop, run).get("reserve") == "succeeded")
        assert shop.ask("workflows")[0]["running"] == 1
        text = shop.say("graphs", "show", run)
        (signal,) = (line for line in text.splitlines() if line.startswith("approved"))
        assert signal.split()[1:3] == ["signal", "approved"]
        assert signal.endswith("not given yet")
        (listed,) = shop.ask("graphs", "list")
        assert f"of {listed['tasks']} nodes" in text.splitlines()[0]
        refused(shop, 1, "its signals: approved", "workflows", "signal", run[-8:], "nope")
        refused(shop, 2, "is not bool", "workflows", "signal", run, "approved", '"yes"')
        given = shop.ask("workflows", "signal", run[-8:], "approved")
        assert given == {"id": run, "signal": "approved", "value": True}
        refused(shop, 1, "has a value already", "workflows", "signal", run, "approved", "false")
        wait_until(lambda: "reserve.undo" in nodes(shop, run))
        wait_until(lambda: nodes(shop, run)["reserve.undo"] == "succeeded")
        shown = shop.say("graphs", "show", run)
        assert "shop.fulfil: failed" in shown
        assert "cannot ship" in shown
        assert "undo: tasks.free" in shown
        refused(shop, 1, "", "graphs", "retry", run, "--node", "reserve")
        (tmp_path / "broken").unlink()
        again = shop.ask("graphs", "retry", run)
        assert set(again["nodes"]) >= {"ship", "reserve"}
        assert ended(shop, run) == "succeeded"
        refused(shop, 1, "no node has failed", "graphs", "retry", run)
    (row,) = shop.ask("workflows", "list")
    assert (row["running"], row["ended"]) == (0, 1)


def test_a_run_that_waits_for_a_place_says_so(shop: Shell) -> None:
    with shop.worker():
        runs = [shop.ask("workflows", "start", "fulfil", json.dumps({"id": 0}))["id"]]
        for number in (1, 2):
            wait_until(lambda: nodes(shop, runs[-1])["place"] == "succeeded")
            run = shop.ask("workflows", "start", "fulfil", json.dumps({"id": number}))["id"]
            runs.append(run)
        wait_until(lambda: nodes(shop, runs[2])["place"] == "scheduled")
        text = shop.say("graphs", "show", runs[2])
        assert "waits for a place: limit 2 of workflow shop.fulfil" in text
        shop.say("graphs", "cancel", runs[0], "--yes")
        wait_until(lambda: nodes(shop, runs[2])["reserve"] == "succeeded")
        assert "waits for a place" not in shop.say("graphs", "show", runs[2])


def test_a_run_is_resolved_and_cancelled(shop: Shell) -> None:
    with shop.worker():
        first, second = (
            shop.ask("workflows", "start", "shop.fulfil", json.dumps({"id": n}))["id"]
            for n in range(2)
        )
        refused(shop, 2, "not JSON", "graphs", "resolve", first, "ship", "--result", "{")
        shop.say("graphs", "resolve", first, "ship", "--result", '{"by": "hand"}')
        shop.say("workflows", "signal", first, "approved", "false")
        assert ended(shop, first) == "succeeded"
        refused(shop, 1, "has succeeded", "graphs", "resolve", first, "ship", "--result", "1")
        shop.say("graphs", "cancel", second, "--yes", "--reason", "no more")
        assert ended(shop, second) == "cancelled"
        refused(shop, 1, "had ended already: succeeded", "graphs", "cancel", first, "--yes")
        done = shop.run("graphs", "cancel", first, "--yes", "--json")
        assert (done.returncode, json.loads(done.stdout)["cancelled"]) == (1, False)
        refused(shop, 1, "no more", "workflows", "signal", second, "approved")


def test_a_node_that_runs_is_not_resolved(shop: Shell, tmp_path: Path) -> None:
    (tmp_path / "held").touch()
    with shop.worker():
        run = shop.ask("workflows", "start", "shop.fulfil", '{"id": 1}')["id"]
        wait_until(lambda: nodes(shop, run).get("reserve") == "running")
        refused(shop, 1, "runs now", "graphs", "resolve", run, "reserve", "--result", '"box"')
        done = shop.run("graphs", "resolve", run, "reserve", "--result", '"box"', "--json")
        assert (done.returncode, json.loads(done.stdout)) == (1, {"resolved": False})
        (tmp_path / "held").unlink()
        wait_until(lambda: nodes(shop, run).get("reserve") == "succeeded")


def test_changes_to_the_job_of_a_graph_are_refused(shop: Shell, tmp_path: Path) -> None:
    run = shop.ask("workflows", "start", "shop.fulfil", '{"id": 1}')["id"]
    shop.say("graphs", "cancel", run, "--yes")
    for words in (("retry", run, "--from-scratch"), ("edit", run, "--queue", "slow")):
        refused(shop, 1, f"umbel graphs retry {run}", "jobs", *words)
    assert ended(shop, run) == "cancelled"


def test_workflows_are_listed_without_the_application(shop: Shell) -> None:
    shop.say("workflows", "start", "shop.fulfil", '{"id": 1}')
    (declared,) = shop.ask("workflows", "list")
    for words in (("workflows",), ("workflows", "list")):
        found = json.loads(shop.run(*words, "--json", app=None).stdout)
        assert found == [declared | {"origin": ""}]


def test_bad_input_is_refused_with_a_remedy(shop: Shell) -> None:
    unknown = "00000000-0000-0000-0000-000000000000"
    for words, code, text in (
        (("workflows", "show", "nope"), 1, "it has shop.fulfil"),
        (("workflows", "start", "fulfil"), 2, "missing a required argument: 'order'"),
        (("workflows", "start", "fulfil", "1"), 2, "for order"),
        (("workflows", "signal", unknown, "approved"), 1, "no job"),
        (("graphs", "retry", unknown), 1, "no job"),
    ):
        refused(shop, code, text, *words)
    done = shop.run("workflows", "start", "fulfil", "--json")
    assert json.loads(done.stderr)["error"]["exit_code"] == done.returncode == 2


def test_the_audit_of_deployments_lists_runs_of_earlier_code(shop: Shell, tmp_path: Path) -> None:
    """Two runs of the declared version, then the code changes."""
    before = shop.ask("workflows")[0]["version"]
    for number in range(2):
        shop.say("workflows", "start", "fulfil", json.dumps({"id": number}))
    assert shop.ask("deploy", "audit")["workflows"] == []
    (tmp_path / "tasks.py").write_text(TASKS.replace("deadline=3600", "deadline=7200"))
    (found,) = shop.ask("deploy", "audit")["workflows"]
    assert (found["workflow"], found["version"], found["live"]) == ("shop.fulfil", before, 2)
    text = shop.say("deploy", "audit")
    assert "They keep the graph with which they were started:" in text
    assert before in text
    origins = {row["version"]: row["origin"] for row in shop.ask("workflows")}
    assert origins[before] == "earlier code"
