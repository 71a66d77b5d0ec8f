"""Graphs and workflows on the dashboard and over HTTP: pages, actions, roles, hostile text."""

from __future__ import annotations

import re
from typing import Any

import pytest

from integration.browsing import HOSTILE, PASSWORD, Browser, add_user, served, updates_of
from integration.conftest import Place, working
from integration.orders import Orders
from integration.running import until
from umbel import Retry, State, chain, chord
from umbel.control import Role
from umbel.dashboard.graph_actions import GRAPH_ACTIONS

ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")


@pytest.fixture
def orders(sqlite: Place) -> Orders:
    return Orders(sqlite.app())


# --- pages -----------------------------------------------------------------------------------


def test_the_pages_of_graphs_show_what_runs_and_what_it_waits_for(orders: Orders) -> None:
    with working(orders.app), served(orders.app) as url:
        run = orders.fulfil.delay(7)
        orders.wait_for(run, charge="succeeded")
        browser = Browser(url)
        [row] = browser.get("/api/v1/graphs").json()["graphs"]
        assert (row["id"], row["workflow"], row["state"]) == (run.id, "order.fulfil", "running")
        assert "order.fulfil" in browser.get("/graphs?state=running&workflow=order.fulfil").text
        assert browser.get("/api/v1/graphs?state=failed").json()["graphs"] == []
        assert browser.get("/api/v1/graphs?workflow=other").json()["graphs"] == []
        assert browser.get("/graphs?state=buried").status_code == 400
        data = browser.get(f"/api/v1/graphs/{run.id}").json()
        assert (data["done"], data["total"], data["state"]) == (1, 3, "running")
        [signal] = data["signals"]
        assert signal["name"] == "approved"
        assert signal["accepts"] == "bool"
        assert signal["is_early"] is False
        page = browser.get(f"/graphs/{run.id}?node=ship").text
        assert '<input type="hidden" name="seen" value="blocked">' in page  # of its cancellation
        for text in ("order.charge", "signal approved", "The signal", "critical", "<svg"):
            assert text in page
        node = browser.get(f"/api/v1/graphs/{run.id}?node=ship").json()["node"]
        edges = {one["name"]: (one["is_known"], one["value"]) for one in node["inputs"]}
        assert edges == {
            "paid": (True, {"order": 7, "card": "4711"}),
            "approved": (False, None),
        }
        job = browser.get(f"/jobs/{node['job']}").text
        assert f'href="/graphs/{run.id}?node={node["job"]}#panel"' in job
        assert f'href="/graphs/{run.id}"' in browser.get(f"/jobs/{run.id}").text
        assert browser.get(f"/api/v1/graphs/{run.id}?node=none").status_code == 409
        assert browser.get(f"/graphs/{node['job']}").status_code == 409
        assert browser.get("/graphs/none").status_code == 404


def test_the_pages_of_workflows_show_versions_runs_and_a_form(orders: Orders) -> None:
    run = orders.fulfil.delay(7)
    with served(orders.app) as url:
        browser = Browser(url)
        [row] = browser.get("/api/v1/workflows").json()["workflows"]
        assert row["version"] == orders.fulfil.version
        assert (row["is_declared"], row["running"], row["ended"]) == (True, 1, 0)
        assert "order.fulfil" in browser.get("/workflows").text
        data = browser.get("/api/v1/workflows/order.fulfil").json()
        assert [one["name"] for one in data["parameters"]] == ["order", "card"]
        assert [one["id"] for one in data["graphs"]] == [run.id]
        page = browser.get("/workflows/order.fulfil").text
        assert "Charge, ask a person, ship." in page
        assert page.count('class="node blocked') == 3
        assert browser.get("/workflows/none").status_code == 404
        del orders.app.workflows["order.fulfil"]  # as after a deployment without it
        [row] = browser.get("/api/v1/workflows").json()["workflows"]
        assert row["is_declared"] is False
        assert "does not declare this workflow" in browser.get("/workflows/order.fulfil").text


def test_a_page_of_graphs_ends_where_the_next_one_begins(orders: Orders) -> None:
    runs = {chain(orders.double.s(n), orders.double.s()).delay().id for n in range(60)}
    with served(orders.app) as url:
        browser = Browser(url)
        first = browser.get("/api/v1/graphs").json()
        second = browser.get(f"/api/v1/graphs?after={first['after']}").json()
    ids = [one["id"] for page in (first, second) for one in page["graphs"]]
    assert sorted(ids) == sorted(runs)


def test_a_graph_with_many_nodes_is_drawn_with_one_box_for_a_task(orders: Orders) -> None:
    run = chord([orders.double.s(n) for n in range(400)], orders.total.s()).delay()
    with served(orders.app) as url:
        browser = Browser(url)
        page = browser.get(f"/graphs/{run.id}").text
        assert len(re.findall(r'<a class="node ', page)) == 2
        assert "order.double × 400" in page
        data = browser.get(f"/api/v1/graphs/{run.id}?box=0").json()
        assert len(data["box"]["nodes"]) == 100
        assert data["box"]["more"] == 300
        assert browser.get(f"/graphs/{run.id}?box=999999999999").status_code == 200


def test_a_graph_that_is_too_large_to_be_read_each_second_shows_its_state(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("umbel.dashboard.graph_pages._MAX_TASKS", 2)
    run = chord([orders.double.s(n) for n in range(3)], orders.total.s()).delay()
    with served(orders.app) as url:
        page = Browser(url).get(f"/graphs/{run.id}").text
        assert "This graph has 4 tasks" in page
        assert "cancel-graph" in page


def test_hostile_names_texts_and_values_are_shown_harmlessly(orders: Orders) -> None:
    app = orders.app
    evil = "\"'><script>alert(1)</script>\n&amp; 🎬 \u202e\x1b[31m".replace("\x1b", "")

    @app.task(name=f"task {evil}", retry=Retry(0))
    async def task(text: str) -> str:
        if text == HOSTILE:
            return text
        raise ValueError(text)

    run = chain(task.s(HOSTILE), task.si(evil)).delay()
    with working(app), served(app) as url:
        until(lambda: run.state is State.BURIED, "the graph to fail")
        browser = Browser(url)
        paths = [f"/graphs/{run.id}?node={node}" for node in ("0", "1")]
        for path in ("/graphs", f"/graphs/{run.id}", *paths, f"/jobs/{run.id}"):
            text = browser.get(path).text
            assert "<script>alert" not in text
            assert "\u202e" not in text
            assert "\x1b" not in text
            assert not re.search(r"<[a-z][^>]*\s(on\w+|style)=", text)


def test_an_open_page_of_a_graph_is_told_of_changes(orders: Orders) -> None:
    run = orders.fulfil.delay(7)
    with served(orders.app) as url, updates_of(url, f"/graphs/{run.id}") as updates:
        assert "0 of 3" in next(updates)["html"]
        with working(orders.app):
            run.signal("approved")
            assert next(u for u in updates if "3 of 3" in u.get("html", ""))


def test_the_frame_of_a_sub_workflow_follows_its_state(orders: Orders) -> None:  # row 93
    @orders.app.workflow(name="order.twice")
    def twice(order: int) -> Any:
        return orders.total.s([orders.double.s(order)]).after(orders.fulfil.s(order))

    run = twice.delay(7)
    with served(orders.app) as url, updates_of(url, f"/graphs/{run.id}") as updates:
        first = next(updates)["html"]
        assert '<g class="subgraph queued"><title>fulfil order.fulfil, queued</title>' in first
        assert "<b><bdi>order.fulfil</bdi></b>" in first  # in the list, it is no link to a job
        rows = Browser(url).get(f"/api/v1/graphs/{run.id}").json()["rows"]
        assert [(row["path"], row["depth"], row["box"]) for row in rows] == [
            ("double", 0, None),
            ("fulfil", 0, None),
            ("fulfil.charge", 1, None),
            ("fulfil.approved", 1, None),
            ("fulfil.ship", 1, None),
            ("total", 0, None),
        ]
        with working(orders.app):
            assert next(u for u in updates if 'class="subgraph running"' in u.get("html", ""))
            run.signal("approved")
            assert next(u for u in updates if 'class="subgraph succeeded"' in u.get("html", ""))


# --- actions ---------------------------------------------------------------------------------


def test_a_workflow_is_started_and_its_signal_is_given(orders: Orders) -> None:
    with working(orders.app), served(orders.app) as url:
        browser = Browser(url)
        wrong = browser.act("start-workflow", workflow="order.fulfil", arguments='{"other": 1}')
        assert wrong.status_code == 400
        assert browser.act("start-workflow", workflow="x", arguments="{}").status_code == 404
        said = browser.act("start-workflow", workflow="order.fulfil", arguments='{"order": 7}')
        run = orders.app.handle(said.json()["done"].split()[-1].rstrip("."))
        give = {"graph": run.id, "name": "approved"}
        assert browser.act("signal", **give, value="7").status_code == 400
        assert browser.act("signal", **give, text="true").status_code == 400
        assert browser.act("signal", graph=run.id, name="x", value="1").status_code == 404
        assert browser.act("signal", **give, value="true").status_code == 200
        assert run.get(timeout=60) == "order 7 shipped"
        again = browser.act("signal", **give, value="false")
        assert again.status_code == 409
        assert "given by local" in again.json()["error"]
        lines = browser.get("/api/v1/audit").json()["lines"]
        assert [one["action"] for one in lines] == ["signal"] * 5 + ["start-workflow"] * 3
        assert {one["subject"] for one in lines[:5]} == {f"{run.id} approved", f"{run.id} x"}


def test_a_failed_run_goes_on_from_a_node(orders: Orders) -> None:
    with working(orders.app), served(orders.app) as url:
        browser = Browser(url)
        orders.is_declining = True
        run = orders.fulfil.delay(7)
        until(lambda: run.state is State.BURIED, "the run to fail")
        [row] = browser.get("/api/v1/graphs?state=failed").json()["graphs"]
        assert row["note"] == "node charge order.charge: ValueError: card 4711 was declined"
        assert "Retry failed nodes" in browser.get(f"/graphs/{run.id}").text
        retry = {"graph": run.id}
        assert browser.act("retry-graph", **retry, node="ship").status_code == 409
        both = browser.act("retry-graph", **retry, node="charge", **{"from": "charge"})
        assert both.status_code == 400
        orders.is_declining = False
        assert browser.act("retry-graph", **retry, node="charge").status_code == 200
        orders.wait_for(run, charge="succeeded")
        assert browser.act("signal", graph=run.id, name="approved", value="true").is_success
        assert run.get(timeout=60) == "order 7 shipped"
        assert browser.act("retry-graph", **retry).status_code == 409
        assert "Retry failed nodes" not in browser.get(f"/graphs/{run.id}").text
        answer = browser.act("retry-graph", **retry, **{"from": "ship"})
        assert answer.json() == {"done": "The graph continues, from ship."}
        until(lambda: run.state is State.SUCCEEDED, "the run to succeed again")
        assert orders.charged == [7, 7]


def test_a_node_is_given_a_result_and_a_graph_is_cancelled(orders: Orders) -> None:
    with served(orders.app) as url:
        browser = Browser(url)
        run = chain(orders.double.s(1), orders.double.s()).delay()
        assert browser.act("resolve-node", graph=run.id, node="0", result="{").status_code == 400
        assert browser.act("resolve-node", graph=run.id, node="0", result="21").is_success
        assert browser.act("resolve-node", graph=run.id, node="0", result="1").status_code == 409
        with working(orders.app):
            assert run.get(timeout=60) == 42
        assert browser.act("cancel-graph", graph=run.id).status_code == 409
        other = chain(orders.double.s(1), orders.double.s()).delay()
        assert browser.act("cancel-graph", graph=other.id, reason="too late").is_success
        until(lambda: other.state is State.CANCELLED, "the graph to be cancelled")
        [row] = browser.get("/api/v1/graphs?state=cancelled").json()["graphs"]
        assert row["note"] == "too late"


# --- who may use it --------------------------------------------------------------------------


def test_viewers_see_graphs_without_masked_values_and_change_nothing(orders: Orders) -> None:
    for role in ROLES:
        add_user(orders.app, role, role)
    orders.is_declining = True
    failed = orders.fulfil.delay(7, "4711-secret")
    with working(orders.app), served(orders.app, login=True, mask=("card",)) as url:
        until(lambda: failed.state is State.BURIED, "the run to fail")
        orders.is_declining = False
        run = orders.fulfil.delay(8, "4711-secret")
        graph = orders.wait_for(run, charge="succeeded")
        browsers = {role: Browser(url) for role in ROLES}
        for role, browser in browsers.items():
            browser.log_in(role, PASSWORD)
        viewer, operator = browsers["viewer"], browsers["operator"]
        job = graph.find("charge").job
        pages = [f"/graphs/{one.id}?node={node}" for one in (run, failed) for node in _NODES]
        for path in ("/graphs", "/workflows", "/workflows/order.fulfil", *pages, f"/jobs/{job}"):
            for address in (path, f"/api/v1{path}"):
                answer = viewer.get(address)
                assert answer.status_code == 200, address
                assert "4711-secret" not in answer.text, address
        assert 'class="action"' not in viewer.get(pages[0]).text
        assert "4711-secret" in operator.get(f"/graphs/{run.id}?node=charge").text
        for action in GRAPH_ACTIONS:
            assert Browser(url).act(action.name).status_code == 401
            assert viewer.act(action.name, graph=run.id).status_code == 403
        forged = operator.http.post("api/v1/actions/cancel-graph", json={"graph": run.id})
        assert forged.status_code == 403
        assert run.state not in (State.CANCELLED, State.BURIED)
        assert operator.act("signal", graph=run.id, name="approved", value="false").is_success
        assert run.get(timeout=60) == "order 8 kept"


_NODES = ("charge", "ship", "approved")


def test_the_description_of_the_http_interface_has_graphs(orders: Orders) -> None:
    with served(orders.app) as url:
        paths = Browser(url).get("/api/v1/openapi.json").json()["paths"]
    pages = ("/graphs", "/graphs/{id}", "/workflows", "/workflows/{name}")
    assert {*pages, *(f"/actions/{one.name}" for one in GRAPH_ACTIONS)} <= paths.keys()
    names = [one["name"] for one in paths["/graphs"]["get"]["parameters"]]
    assert names == ["state", "workflow", "after"]
