"""Names with slashes and signs of URLs on the dashboard: their pages, data, updates and actions."""

from __future__ import annotations

import html
from typing import Any
from urllib.parse import quote

import pytest

from integration.browsing import Browser, served, updates_of
from integration.conftest import working
from integration.running import Signal, ask, until
from umbel import Limit, Umbel

NAMES = ("mail/eu", "/a//b?c=d&e/", '50%25 %2F "b<i>🙂')


def check(url: str, path: str, shown: str) -> dict[str, Any]:
    """Check that a page, its data and its updates show a text. Return the data."""
    browser = Browser(url)
    page = browser.get(path)
    assert page.status_code == 200, (path, page.text)
    assert shown in html.unescape(page.text)
    view = html.unescape(page.text).partition('data-view="')[2].partition('"')[0]
    if view:
        with updates_of(url, quote(view, safe="")) as updates:
            assert shown in html.unescape(next(updates)["html"])
    data = browser.get(f"/api/v1{path}")
    assert data.status_code == 200, (path, data.text)
    found: dict[str, Any] = data.json()
    return found


@pytest.mark.parametrize("name", [*NAMES, "eu#1"])
def test_a_queue_a_route_and_a_worker_may_have_any_name(shop: Umbel, name: str) -> None:
    @shop.task(name="shop.plan", affinity="plan", queue=name)
    def plan(plan: str) -> None: ...

    segment = quote(name, safe="")
    plan.delay(name)
    with served(shop) as url:
        data = check(url, f"/queues/{segment}", name)
        assert data["queue"]["waiting"] == 1  # at the gate of its route
        problems = Browser(url).get("/api/v1/overview").json()["problems"]
        assert f"/queues/{segment}" in [problem["page"] for problem in problems]
        assert f'href="/queues/{segment}"' in Browser(url).get("/").text
        with working(shop, index=3, name=name):
            until(lambda: ask(shop, lambda operations: operations.routes()), "the route")
            assert check(url, f"/routes?key={segment}", name)["routes"][0]["key"] == name
            assert check(url, "/workers", name)["workers"][0]["name"] == name
            check(url, f"/jobs?worker={segment}", name)


@pytest.mark.parametrize("name", NAMES)
def test_a_task_a_schedule_and_a_workflow_may_have_any_name(shop: Umbel, name: str) -> None:
    @shop.task(name=name, every=3600)
    def work() -> None: ...

    @shop.workflow(name=f"flow {name}")
    def flow() -> Any:
        return work.s()

    segment = quote(name, safe="")
    with working(shop), served(shop) as url:
        until(lambda: len(ask(shop, lambda o: o.schedules.all())) == 2, "the schedules")
        assert check(url, f"/tasks/{segment}", name)["task"]["name"] == name
        assert check(url, f"/schedules/{segment}", name)["name"] == name
        assert check(url, f"/workflows/flow%20{segment}", name)["workflow"] == f"flow {name}"
        check(url, f"/jobs?task={segment}", name)


@pytest.mark.parametrize("token", ["acme", '/a/b#c?d=%2F "e<i>🙂'])
def test_the_gate_of_a_token_shows_its_numbers_and_changes_its_rule(app: Umbel, token: str) -> None:
    running, go = Signal(), Signal()

    @app.task(name="shop.mail", limit=Limit(1, token="tenant"))
    async def mail(tenant: str) -> None:
        running.set()
        await go.seen()

    key = f"limit:shop.mail/tenant#{token}"
    path = f"/gates/{quote(key, safe='')}"
    with served(app) as url:
        browser = Browser(url)
        with working(app):
            try:
                jobs = [mail.delay(token), mail.delay(token)]
                running.wait()
                until(lambda: browser.get(f"/api/v1{path}").json()["waiting"], "a waiting job")
                data = check(url, path, token)
                assert data["gate"]["capacity"] == 1
                assert (data["gate"]["held"], data["gate"]["waiting"]) == (1, 1)
                changed = browser.act("set-limit", rule=key, capacity="2")
                assert changed.json() == {
                    "done": "limit:shop.mail/tenant now admits 2 jobs for each token."
                }
            finally:
                go.set()
            until(lambda: all(job.state.finished for job in jobs), "the jobs")
        other = f"/gates/{quote(f'limit:shop.mail/tenant#no {token}', safe='')}"
        assert check(url, other, token)["gate"]["capacity"] == 2


def test_a_rate_is_changed_and_a_rule_of_workers_is_not(app: Umbel) -> None:
    @app.task(name="shop.call", rate="10/s")
    def call() -> None: ...

    @app.task(name="shop.scan", limit=Limit(2, per="worker"))
    def scan() -> None: ...

    with working(app), served(app) as url:
        browser = Browser(url)
        changed = browser.act("set-rate", rule="rate:shop.call", rates="5/s, 100/m")
        assert changed.json() == {"done": "rate:shop.call now lets jobs start at 5/s, 100/m."}
        page = browser.get("/gates/rate%3Ashop.call").text
        assert "5 per 1.0 s, 100 per 1 min" in page
        assert browser.act("set-rate", rule="rate:shop.call", rates="often").status_code == 400
        assert browser.act("set-rate", rule="rate:shop.call", rates="").status_code == 200
        gates = {gate["key"]: gate for gate in browser.get("/api/v1/gates").json()["gates"]}
        assert gates["rate:shop.call"]["rates"] == [[10, 1.0]]
        assert gates["worker-limit:shop.scan"]["change"] is None
        refused = browser.act("set-limit", rule="worker-limit:shop.scan", capacity="9")
        assert refused.status_code == 409
        assert "change it in the code" in refused.json()["error"]


def test_a_login_leads_back_to_a_page_with_signs_of_urls(shop: Umbel) -> None:
    with served(shop, login=True) as url:
        answer = Browser(url).get(f"/queues/{quote('a?b#c%2F', safe='')}?x=1")
        assert answer.headers["location"] == (
            f"/login?next={quote('/queues/' + quote('a?b#c%2F', safe='/') + '?x=1')}"
        )
