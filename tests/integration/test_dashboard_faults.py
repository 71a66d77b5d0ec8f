"""The dashboard when something is wrong: the store, too many pages, other operators, a proxy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from integration.browsing import (
    HOSTILE,
    PASSWORD,
    Browser,
    add_user,
    bury,
    declare,
    served,
    updates_of,
)
from integration.conftest import Place, working
from integration.running import ask, until
from umbel import Umbel
from umbel.clock import SystemClock
from umbel.dashboard.live import LiveViews, TooManyStreams
from umbel.dashboard.pages import PAGES
from umbel.messages import State
from umbel.telemetry import Telemetry

# --- the store -------------------------------------------------------------------------------


def test_a_store_that_does_not_answer_is_named_and_the_page_recovers(
    distant: Place, proxy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = declare(distant.app())
    app.registry.find("shop.add").delay(1, 2)
    with served(app) as url, updates_of(url, "/queues") as updates:
        assert "/queues/default" in next(updates)["html"]
        monkeypatch.setattr("umbel.dashboard.server._READ_SECONDS", 0.5)
        proxy.silence()
        found = next(update for update in updates if update.get("error"))
        assert found["error"] == "The store is unreachable"
        assert found["since"]
        assert "/queues/default" in found["html"]  # the last data stay
        answer = Browser(url).get("/queues")
        assert answer.status_code == 503
        assert 'data-retry="5"' in answer.text  # the page tries again by itself
        proxy.mend()
        assert next(update for update in updates if update.get("error") == "")


def test_a_dashboard_that_starts_while_the_store_is_away_serves_when_it_is_back(
    distant: Place, proxy: Any
) -> None:
    app = declare(distant.app())
    ask(app, lambda operations: operations.queues())
    proxy.cut()
    with served(app) as url:
        browser = Browser(url)
        assert browser.get("/").status_code == 503
        assert browser.get("/api/v1/overview").json()["error"]
        assert browser.get("/static/umbel.css").status_code == 200
        proxy.mend()
        until(lambda: browser.get("/").status_code == 200, "the page")


def test_requests_that_need_a_user_are_answered_in_time_by_a_slow_store(
    distant: Place, proxy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = declare(distant.app())
    add_user(app, "ann", "operator")
    with served(app, login=True) as url:
        browser = Browser(url)
        token = browser.token
        assert browser.log_in("ann", PASSWORD).status_code == 303
        [session] = [*browser.http.cookies.values()]
        monkeypatch.setattr("umbel.dashboard.server._READ_SECONDS", 0.5)
        proxy.silence()
        ann = {"cookie": f"umbel-session={session}", "origin": browser.origin}
        fields = {"name": "ann", "password": PASSWORD, "csrf": token}
        browser = Browser(url)  # without a cookie
        answers = [
            browser.http.get("queues", headers=ann, timeout=8),
            browser.http.get("live?view=/queues", headers=ann, timeout=8),
            browser.http.post("api/v1/actions/pause", headers=ann, json={}, timeout=8),
            browser.http.post("login", headers={"origin": browser.origin}, data=fields, timeout=8),
        ]
        for answer in answers:
            assert answer.status_code == 503, answer.url
            assert "The store is slow" in answer.text
            assert answer.headers["retry-after"] == "5"


# --- many pages ------------------------------------------------------------------------------


def test_hundreds_of_pages_of_one_view_cost_one_read() -> None:
    reads = 0

    async def render() -> str:
        nonlocal reads
        reads += 1
        return f"content {reads}"

    async def work() -> None:
        live = LiveViews(SystemClock(), Telemetry())
        many = [live.follow("view", f"user {n % 50}", render, 3600.0) for n in range(500)]
        first = await asyncio.gather(*(anext(one) for one in many))
        assert {update.content for update in first if update is not None} == {"content 1"}
        assert live.streams == 500
        for one in many:
            await one.aclose()
        assert live.streams == 0
        await live.close()

    asyncio.run(work())
    assert reads == 1


def test_pages_beyond_the_limits_are_refused_and_room_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("umbel.dashboard.live.MAX_STREAMS", 30)

    async def render() -> str:
        return "content"

    async def work() -> None:
        live = LiveViews(SystemClock(), Telemetry())
        opened = [live.follow(n, f"user {n % 2}", render, 3600.0) for n in range(30)]
        for one in opened:
            await anext(one)
        with pytest.raises(TooManyStreams):
            await anext(live.follow(31, "user 3", render, 3600.0))
        await opened[0].aclose()
        await anext(live.follow(31, "user 3", render, 3600.0))
        await live.close()

    asyncio.run(work())


def test_an_excess_page_gets_an_answer_that_says_so_and_the_rest_stays_usable(shop: Umbel) -> None:
    with served(shop) as url, ExitStack() as stack:
        opened = [stack.enter_context(updates_of(url, "/queues")) for _ in range(20)]
        for updates in opened:
            assert "html" in next(updates)
        answer = Browser(url).get("/live?view=/queues")
        assert answer.status_code == 503
        assert "Too many pages are open" in answer.json()["error"]
        assert Browser(url).get("/queues").status_code == 200
        assert Browser(url).act("pause", scope="queue", name="default").status_code == 200


def test_requests_that_cost_much_are_bounded(shop: Umbel) -> None:
    with served(shop) as url:
        browser = Browser(url)
        assert browser.act("publish", task="shop.add", arguments="[" * 100_000).status_code == 400
        assert browser.act("publish", task="x" * 3_000_000).status_code == 413
        assert browser.get(f"/jobs?text={'x' * 20_000}").status_code in (200, 400)
        assert browser.get(f"/queues/{'x' * 20_000}").status_code in (200, 400, 404)


# --- hostile arguments -----------------------------------------------------------------------


def test_arguments_of_a_megabyte_leave_every_page_small(app: Umbel) -> None:
    charge = app.registry.find("shop.charge")
    handles = [charge.delay(n, HOSTILE + "x" * 900_000) for n in range(5)]
    with working(app), served(app) as url:
        until(lambda: all(h.state is State.BURIED for h in handles), "the jobs to be buried")
        browser = Browser(url)
        for page in PAGES:
            if "{" in page.path and page.name not in ("job", "queue"):
                continue
            answer = browser.get(page.path.format(id=handles[0].id, name="default"))
            assert answer.status_code == 200
            assert len(answer.content) < 250_000, page.path
        assert len(browser.get("/api/v1/jobs").content) < 50_000
        assert browser.get("/api/v1/jobs").json()["jobs"][0]["error"].startswith("ValueError: card")
        # One job is complete over HTTP.
        assert len(browser.get(f"/api/v1/jobs/{handles[0].id}").content) > 900_000


# --- users -----------------------------------------------------------------------------------


def test_the_open_page_of_a_removed_user_ends(shop: Umbel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("umbel.dashboard.server._USER_CHECK_SECONDS", 0.0)
    add_user(shop, "ann", "operator")
    with served(shop, login=True) as url:
        browser = Browser(url)
        browser.log_in("ann", PASSWORD)
        with browser.http.stream("GET", "live?view=/queues") as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data:")
            ask(shop, lambda operations: operations.access.remove_user("ann"))
            shop.registry.find("shop.add").delay(1, 2)  # the page changes
            assert all("/queues/default" not in line for line in lines)  # and it has ended
        assert browser.act("pause", scope="queue", name="default").status_code in (401, 403)
        assert browser.get("/queues").headers["location"].startswith("/login")


def test_of_many_operators_who_retry_a_job_one_succeeds(app: Umbel) -> None:
    [job] = bury(app)
    with served(app) as url:
        browsers = [Browser(url) for _ in range(8)]
        tokens = [browser.token for browser in browsers]

        def retry(number: int) -> httpx.Response:
            browser = browsers[number]
            headers = {"origin": browser.origin, "x-csrf": tokens[number]}
            fields = {"job": job, "seen": "buried"}
            return browser.http.post("api/v1/actions/retry", json=fields, headers=headers)

        with ThreadPoolExecutor(8) as executor:
            answers = list(executor.map(retry, range(8)))
        assert sorted(answer.status_code for answer in answers) == [200] + [409] * 7
        refused = next(answer for answer in answers if answer.status_code == 409)
        assert "queued" in refused.json()["error"]
        lines = browsers[0].get("/api/v1/audit").json()["lines"]
        assert sum(line["outcome"] == "The job is queued again." for line in lines) == 1
        assert len(lines) == 8  # refused actions are recorded, too


# --- a reverse proxy -------------------------------------------------------------------------


@contextmanager
def reverse_proxy(target: str, prefix: str) -> Iterator[str]:
    """A proxy that serves a dashboard under a path, and names the address of the client."""
    client = httpx.AsyncClient(base_url=target, timeout=60)

    async def forward(request: Request) -> Response:
        path = request.url.path.removeprefix(prefix)
        query = f"?{request.url.query}" if request.url.query else ""
        headers = [*request.headers.raw, (b"x-forwarded-for", b"203.0.113.7")]
        sent = client.build_request(
            request.method, path + query, headers=headers, content=await request.body()
        )
        answer = await client.send(sent, stream=True)
        kept = {n: v for n, v in answer.headers.items() if n != "transfer-encoding"}
        return StreamingResponse(answer.aiter_raw(), answer.status_code, kept)

    route = Route(prefix + "/{path:path}", forward, methods=["GET", "POST"])
    config = uvicorn.Config(Starlette(routes=[route]), port=0, log_config=None, lifespan="off")
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started, "the proxy")
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}{prefix}/"
    finally:
        server.should_exit = True
        thread.join(10)
        with suppress(RuntimeError):
            asyncio.run(client.aclose())


def test_behind_a_proxy_with_a_path_pages_actions_and_updates_work(shop: Umbel) -> None:
    add_user(shop, "ann", "operator")
    with (
        served(shop, prefix="/umbel", hosts=("127.0.0.1",)) as direct,
        reverse_proxy(direct.removesuffix("umbel/"), "/umbel") as url,
    ):
        browser = Browser(url)
        browser.origin = url.removesuffix("/umbel/")
        assert browser.get("/jobs").headers["location"] == "/umbel/login?next=/umbel/jobs"
        answer = browser.log_in("ann", PASSWORD, "/umbel/jobs")
        assert answer.headers["location"] == "/umbel/jobs"
        assert "Path=/umbel" in answer.headers["set-cookie"]
        page = browser.get("/jobs").text
        assert 'href="/umbel/queues"' in page
        assert 'src="/umbel/static/umbel.js"' in page
        assert 'href="/queues"' not in page
        assert browser.get("/static/umbel.js").status_code == 200
        assert browser.act("pause", scope="queue", name="default").status_code == 200
        with browser.http.stream("GET", "live?view=/queues") as stream:
            line = next(stream.iter_lines())
            assert "/umbel/queues/default" in line
        servers = browser.get("/api/v1/openapi.json").json()["servers"]
        assert servers == [{"url": "/umbel/api/v1"}]
    lines, _ = ask(shop, lambda operations: operations.audit.read())
    done = [(line.user, line.action, line.address) for line in lines]
    assert done == [("ann", "pause", "127.0.0.1"), ("ann", "log-in", "127.0.0.1")]
