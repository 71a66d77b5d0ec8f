"""The dashboard over HTTP: pages, actions, updates, and who may use them."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import uuid
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from integration.browsing import (
    HOSTILE,
    PASSWORD,
    VALUES,
    Browser,
    add_user,
    bury,
    declare,
    served,
    updates_of,
)
from integration.conftest import Place, working
from integration.running import ask, until
from umbel import Umbel, chain
from umbel.backends import JobFilter
from umbel.control import Role
from umbel.dashboard import DashboardOptions, dashboard
from umbel.dashboard.actions import ACTIONS
from umbel.dashboard.openapi import api_path
from umbel.dashboard.pages import PAGES
from umbel.errors import ConfigurationError
from umbel.messages import State

# --- pages and actions -----------------------------------------------------------------------


def test_every_page_shows_hostile_text_harmlessly(app: Umbel) -> None:
    [job] = bury(app, card=HOSTILE)
    app.registry.find("shop.count").delay(3)
    run = app.workflows["shop.restock"].delay(3).id
    names = {"task": "shop.charge", "schedule": "shop.add", "workflow": "shop.restock"}
    with working(app), served(app) as url:
        browser = Browser(url)
        for page in PAGES:
            values = VALUES | {"id": run if page.name == "graph" else job}
            values["name"] = names.get(page.name, "default")
            answer = browser.get(page.path.format(**values))
            assert answer.status_code == 200, (page.path, answer.text)
            assert "<script>alert" not in answer.text
            assert "\x1b" not in answer.text
            assert "\u202e" not in answer.text
            data = browser.get(f"/api/v1{api_path(page).format(**values)}")
            assert isinstance(data.json(), dict)
        assert "shop.charge" in browser.get(f"/jobs/{job}").text


def test_a_job_is_retried_cancelled_edited_and_published(app: Umbel) -> None:
    [job] = bury(app)
    with served(app) as url:
        browser = Browser(url)
        assert browser.act("retry", job=job, seen="buried").json() == {
            "done": "The job is queued again."
        }
        again = browser.act("retry", job=job, seen="buried")
        assert again.status_code == 409
        assert "is queued now" in again.json()["error"]
        assert browser.act("cancel", job=job, seen="queued").status_code == 200
        wrong = browser.act("edit", job=job, arguments='{"order": "x"}')
        assert wrong.status_code == 400
        assert "order" in wrong.json()["error"]
        assert browser.act("edit", job=job, arguments='{"order": 8}').status_code == 200
        document = browser.get(f"/api/v1/jobs/{job}").json()["job"]
        assert document["arguments"] == [{"name": "order", "value": 8}]
        said = browser.act("publish", task="shop.add", arguments="[20, 22]").json()["done"]
        with working(app):
            assert app.handle(said.split()[-1].rstrip(".")).get(timeout=30) == 42
        lines = browser.get("/api/v1/audit").json()["lines"]
        assert [line["action"] for line in lines] == [
            *("publish", "edit", "edit", "cancel", "retry", "retry")
        ]
        assert {line["user"] for line in lines} == {"local"}
        assert lines[2]["outcome"].startswith("refused: ")


def test_buried_jobs_are_grouped_by_error_and_retried_together(app: Umbel) -> None:
    jobs = bury(app, 3)
    with served(app) as url:
        browser = Browser(url)
        [group] = browser.get("/api/v1/buried").json()["groups"]
        assert group["count"] == 3
        assert group["error"] == "ValueError: card … of order … was declined"
        fields = {"task": group["task"], "group": group["key"], "limit": "100"}
        assert browser.act("retry-group", count="1", **fields).status_code == 409
        assert browser.act("retry-group", count="3", **fields).status_code == 200
    found = ask(app, lambda operations: operations.jobs(JobFilter(states=(State.QUEUED,))))
    assert {job.id for job in found} == set(jobs)


def test_queues_limits_and_schedules_are_changed(app: Umbel) -> None:
    with working(app), served(app) as url:
        browser = Browser(url)
        assert browser.act("pause", scope="queue", name="default", reason="x").status_code == 200
        [queue] = [
            one
            for one in browser.get("/api/v1/queues").json()["queues"]
            if one["name"] == "default"
        ]
        assert queue["pauses"][0]["reason"] == "x"
        assert browser.act("resume", scope="queue", name="default").status_code == 200
        assert browser.act("resume", scope="queue", name="default").status_code == 409
        assert browser.act("set-limit", rule="limit:shop.count", capacity="5").status_code == 200
        gates = browser.get("/api/v1/gates").json()["gates"]
        assert {gate["key"]: gate["capacity"] for gate in gates}["limit:shop.count"] == 5
        until(lambda: browser.get("/api/v1/schedules").json()["schedules"], "the schedule")
        assert browser.act("pause-schedule", schedule="shop.add").status_code == 200
        assert browser.get("/api/v1/schedules/shop.add").json()["schedule"]["state"] == "paused"
        assert browser.act("trigger", schedule="none").status_code == 404
        assert browser.act("purge", name="default", confirm="defualt").status_code == 400


def test_an_open_page_is_told_of_changes(app: Umbel) -> None:
    with served(app) as url, updates_of(url, "/queues") as updates:
        assert "No queue holds jobs" in next(updates)["html"]
        app.registry.find("shop.add").delay(1, 2)
        assert "/queues/default" in next(u["html"] for u in updates if "html" in u)


def test_a_program_is_told_of_changes_as_json(app: Umbel) -> None:
    secret = ask(app, lambda operations: operations.access.add_token("ci", "viewer", 60))
    headers = {"authorization": f"Bearer {secret}"}
    with served(app, login=True) as url:
        address = f"{url}api/v1/live?view=/queues"
        assert httpx.get(address).status_code == 401
        with httpx.stream("GET", address, headers=headers, timeout=60) as stream:
            events = (json.loads(line[6:]) for line in stream.iter_lines() if line[:5] == "data:")
            assert next(events)["data"] == {"queues": []}
            app.registry.find("shop.add").delay(1, 2)
            [queue] = next(event["data"]["queues"] for event in events if "data" in event)
            assert queue["name"] == "default"
        paths = httpx.get(f"{url}api/v1/openapi.json", headers=headers).json()["paths"]
        assert "text/event-stream" in paths["/live"]["get"]["responses"]["200"]["content"]


def test_an_unreachable_store_is_named_and_the_page_recovers(distant: Place, proxy: Any) -> None:
    app = declare(distant.app())
    with served(app) as url, updates_of(url, "/queues") as updates:
        assert next(updates)["error"] == ""
        proxy.cut()
        found = next(update for update in updates if update.get("error"))
        assert found["error"] == "The store is unreachable"
        assert found["since"]
        assert Browser(url).get("/queues").status_code == 503
        proxy.mend()
        assert next(update for update in updates if update.get("error") == "")


def test_a_program_publishes_with_options_and_gets_the_id(app: Umbel) -> None:
    job = str(uuid.uuid4())
    call = {"task": "shop.add", "arguments": "[1, 2]"}
    with served(app) as url:
        browser = Browser(url)
        options = {"queue": "mail", "delay": "90.5", "priority": "7", "unique": "once", "id": job}
        answer = browser.act("publish", **call, **options).json()
        assert answer == {"done": f"Published the job {job}.", "id": job}
        found = browser.get(f"/api/v1/jobs/{job}").json()["job"]
        assert (found["queue"], found["priority"]) == ("mail", 7)
        assert found["state"] == "scheduled"
        again = browser.act("publish", **call, unique="once")
        assert again.status_code == 409
        assert job in again.json()["error"]
        for wrong in ({"priority": "high"}, {"priority": "0.5"}, {"delay": "x"}, {"id": "7"}):
            assert browser.act("publish", **call, **wrong).status_code == 400, wrong


def test_a_refused_action_says_who_was_faster(shop: Umbel) -> None:
    [job] = bury(shop)
    for name in ("ann", "bob"):
        add_user(shop, name, "operator")
    with served(shop, login=True) as url:
        ann, bob = Browser(url), Browser(url)
        ann.log_in("ann", PASSWORD)
        bob.log_in("bob", PASSWORD)
        assert ann.act("retry", job=job, seen="buried").status_code == 200
        refused = bob.act("retry", job=job, seen="buried")
        assert refused.status_code == 409
        assert re.search(r"is queued now: retry by ann \d+ s ago", refused.json()["error"])


def test_selected_jobs_and_all_that_match_a_filter_are_retried_and_cancelled(app: Umbel) -> None:
    jobs = bury(app, 5)
    matching = {"state": "buried", "task": "shop.charge", "error": "declined"}
    with served(app) as url:
        browser = Browser(url)
        chosen = " ".join([*jobs[:2], "none"])
        answer = browser.act("retry-jobs", jobs=chosen)
        assert answer.json() == {"done": "2 jobs are queued again."}
        query = urlencode(matching | {"count": "yes"})
        counted = browser.get(f"/api/v1/jobs?{query}").json()["matching"]
        assert counted == {"count": 3, "is_more": False}
        assert browser.act("retry-jobs", **matching, count="1").status_code == 409
        assert browser.act("retry-jobs", **matching).status_code == 400
        assert browser.act("retry-jobs", state="running", count="3").status_code == 400
        answer = browser.act("retry-jobs", **matching, count="3")
        assert answer.json() == {"done": "3 jobs are queued again."}
        assert browser.act("retry-jobs", **matching, count="3").status_code == 409
        live = {"state": "queued", "task": "shop.charge", "count": "5"}
        answer = browser.act("cancel-jobs", **live)
        assert answer.json() == {"done": "5 jobs are cancelled or were asked to stop."}


def test_the_description_names_required_fields_answers_and_errors(shop: Umbel) -> None:
    with served(shop) as url:
        browser = Browser(url)
        document = browser.get("/api/v1/openapi.json").json()
        assert {"Done", "Error"} <= document["components"]["schemas"].keys()
        assert "text/csv" in document["paths"]["/audit.csv"]["get"]["responses"]["200"]["content"]
        for name, action in ACTIONS.items():
            described = document["paths"][f"/actions/{name}"]["post"]
            schema = described["requestBody"]["content"]["application/json"]["schema"]
            assert schema["required"] == [*action.fields]
            assert {"400", "404", "409", "413", "503"} <= described["responses"].keys()
            if action.fields:
                answer = browser.act(name)
                assert answer.status_code == 400, name
                assert any(field in answer.json()["error"] for field in action.fields), name


def test_the_nodes_of_a_selected_graph_are_cancelled_too(app: Umbel) -> None:
    add = app.registry.find("shop.add")
    runs = [chain(add.s(1, 2), add.s(3), add.s(4)).delay() for _ in range(2)]
    with served(app) as url:
        browser = Browser(url)
        answer = browser.act("cancel-jobs", jobs=runs[0].id)
        assert answer.json() == {"done": "1 job is cancelled or was asked to stop."}
        assert browser.act("cancel", job=runs[1].id).status_code == 200
    jobs = ask(app, lambda operations: operations.jobs(JobFilter()))
    assert len(jobs) == 8
    assert {job.state for job in jobs} == {State.CANCELLED}


def test_the_page_of_a_schedule_shows_how_late_its_last_ticks_were(shop: Umbel) -> None:
    @shop.task(name="shop.tick", every=1)
    def tick() -> None: ...

    with working(shop), served(shop) as url:
        browser = Browser(url)

        def ended() -> list[Any]:
            answer = browser.get("/api/v1/schedules/shop.tick")
            history = answer.json()["history"] if answer.is_success else []
            return [line for line in history if line["state"] == "succeeded"]

        until(ended, "a tick")
        assert all(0 <= line["late"] < 60 for line in ended())
        page = browser.get("/schedules/shop.tick").text
        assert re.search(r'class="succeeded" title="succeeded, [^"]+ late"', page)


def test_only_the_page_of_a_job_that_is_not_found_says_that_jobs_are_deleted(shop: Umbel) -> None:
    with served(shop) as url:
        for path, is_said in (("/jobs/none", True), ("/schedules/none", False)):
            answer = Browser(url).get(path)
            assert answer.status_code == 404
            assert ("Finished jobs are deleted" in answer.text) is is_said


def test_schedules_and_jobs_of_canvases_link_to_pages_that_exist(app: Umbel) -> None:
    count = app.registry.find("shop.count")
    restock = app.workflows["shop.restock"]
    daily: dict[str, Any] = {"cron": "30 3 * * *", "zone": "Asia/Kolkata"}
    app.schedule("one", count.s(1), **daily)
    app.schedule("chain", chain(count.s(1), count.si(2)), **daily)
    app.schedule("run", restock.s(3), **daily)
    restock.delay(3)
    with working(app), served(app) as url:
        browser = Browser(url)
        for name in ("one", "chain", "run"):
            until(lambda name=name: browser.get(f"/schedules/{name}").is_success, "the schedule")
        kinds = []
        for path in ("/schedules/one", "/schedules/chain", "/schedules/run", "/schedules", "/jobs"):
            page = browser.get(path).text
            kinds.append(re.findall("<tr><th>(Task|Canvas|Workflow)<td>", page))
            for link in {*re.findall(r'<td[^>]*><a href="([^"]+)"', page)}:
                assert browser.get(html.unescape(link)).is_success, (path, link)
        assert kinds == [["Task"], ["Canvas"], ["Workflow"], [], []]
        assert re.search(
            r"<li>\d{4}-\d\d-\d\d 03:30:00\+05:30 ", browser.get("/schedules/run").text
        )


def test_the_page_of_deployments_compares_the_code_of_workers(shop: Umbel) -> None:
    with working(shop, name="web-1"), served(shop) as url:
        browser = Browser(url)
        assert "Every worker runs the code of this dashboard." in browser.get("/deployments").text

        @shop.task(name="shop.more")
        def more() -> None: ...

        page = browser.get("/deployments").text
        assert "New tasks, and the workers that do not have them" in page
        assert browser.get("/api/v1/deployments").json()["code"]["restart"] == ["web-1"]


def test_only_pauses_that_can_be_ended_have_a_button_for_it(shop: Umbel) -> None:
    with working(shop), served(shop) as url:
        browser = Browser(url)
        paths = (
            "/queues",
            "/queues/default",
            "/workers",
            "/tasks/shop.add",
            "/gates/limit:shop.count",
        )
        browser.act("pause", scope="all", reason="a move")
        for path in paths:
            resumes = re.findall(r"/actions/resume\W.*?</form>", browser.get(path).text, re.DOTALL)
            assert all('name="scope" value="all"' in form for form in resumes), path
        assert browser.act("resume", scope="all").status_code == 200
        for path, scope, name in (
            ("/queues", "queue", "default"),
            ("/tasks/shop.add", "task", "shop.add"),
            ("/gates/limit:shop.count", "gate", "limit:shop.count"),
        ):
            assert "/actions/resume" not in browser.get(path).text
            assert browser.act("pause", scope=scope, name=name).status_code == 200
            assert "/actions/resume" in browser.get(path).text


def test_arguments_with_invisible_characters_are_json_in_the_form(shop: Umbel) -> None:
    card = "a\xad\x85\u2028\u202e<b>"
    [job] = bury(shop, card=card)
    with served(shop) as url:
        browser = Browser(url)
        page = browser.get(f"/jobs/{job}").text
        written = re.search(r"<textarea[^>]*>(.*?)</textarea>", page, re.DOTALL)
        assert written is not None
        arguments = html.unescape(written[1])
        assert json.loads(arguments)["args"] == [0, card]
        assert browser.act("edit", job=job, arguments=arguments).status_code == 200
    [large] = bury(shop, card="x" * 70_000)
    with served(shop) as url:
        assert "too large to be edited here" in Browser(url).get(f"/jobs/{large}").text


# --- who may use it --------------------------------------------------------------------------


def test_another_address_than_loopback_needs_a_login() -> None:
    with pytest.raises(ConfigurationError, match="without a login"):
        DashboardOptions(host="0.0.0.0")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[::1", "a" * 900])
def test_another_host_is_refused(shop: Umbel, host: str) -> None:
    with served(shop) as url:
        for path in ("/", "/api/v1/jobs", "/static/umbel.js", "/live?view=/"):
            assert Browser(url).get(path, host=host).status_code in (400, 421)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "same-origin", "x-csrf": "0" * 64},
    ],
)
def test_a_change_from_another_site_is_refused(shop: Umbel, headers: dict[str, str]) -> None:
    with served(shop) as url:
        browser = Browser(url)
        sent = {"x-csrf": browser.token, **headers}
        fields = {"scope": "queue", "name": "default"}
        answer = browser.http.post("api/v1/actions/pause", json=fields, headers=sent)
        assert answer.status_code == 403
        assert browser.http.get("api/v1/actions/pause").status_code == 405
    assert ask(shop, lambda operations: operations.pauses()) == ()


def test_a_connection_through_a_proxy_is_not_local(shop: Umbel) -> None:
    with served(shop) as url:
        assert Browser(url).get("/api/v1/jobs", **{"x-forwarded-for": "1.2.3.4"}).status_code == 401
    with served(shop, prefix="/umbel") as url:  # a proxy removes the prefix
        behind = Browser(url.removesuffix("umbel/"))
        assert behind.get("/api/v1/jobs").status_code == 401
        assert behind.get("/jobs").headers["location"] == "/umbel/login?next=/umbel/jobs"
        assert 'src="/umbel/static/umbel.js"' in behind.get("/login").text


def test_every_page_stream_and_action_checks_the_role(shop: Umbel) -> None:
    roles: tuple[Role, ...] = ("viewer", "operator", "admin")
    for role in roles:
        add_user(shop, role, role)
    with served(shop, login=True) as url:
        anonymous = Browser(url)
        browsers = {role: Browser(url) for role in roles}
        for role in roles:
            assert browsers[role].log_in(role, PASSWORD).status_code == 303
        for page in PAGES:
            values = VALUES | {"name": "shop.add", "id": "none"}
            path = page.path.format(**values)
            data = "/api/v1" + api_path(page).format(**values)
            assert anonymous.get(path).headers["location"].startswith("/login?next=")
            assert anonymous.get(data).status_code == 401
            if page.seconds:
                assert anonymous.get(f"/live?view={path}").status_code == 401
            for role in roles:
                may = roles.index(role) >= roles.index(page.role)
                assert (browsers[role].get(data).status_code == 403) is not may
        for action in ACTIONS.values():
            assert anonymous.act(action.name).status_code == 401
            for role in roles:
                may = roles.index(role) >= roles.index(action.role)
                assert (browsers[role].act(action.name).status_code == 403) is not may


def test_a_session_is_new_at_login_and_ends_with_its_user(shop: Umbel) -> None:
    add_user(shop, "ann", "operator")
    with served(shop, login=True) as url:
        browser = Browser(url)
        browser.http.cookies.set("umbel-session", "chosen by an attacker")
        answer = browser.log_in("ann", PASSWORD, "/jobs?state=buried")
        assert answer.headers["location"] == "/jobs?state=buried"
        cookie = answer.headers["set-cookie"]
        assert "chosen" not in cookie
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        browser.http.cookies.clear()
        browser.http.cookies.set("umbel-session", cookie.partition("=")[2].partition(";")[0])
        assert browser.get("/jobs").status_code == 200
        add_user(shop, "ann", "viewer")  # a new password ends sessions
        assert browser.get("/api/v1/jobs").status_code == 401
        ask(shop, lambda operations: operations.access.remove_user("ann"))
        assert browser.log_in("ann", PASSWORD).status_code == 401


@pytest.mark.parametrize("following", ["//evil.example", "http://evil.example/", "/\\evil", "\n/"])
def test_a_login_leads_to_no_other_site(shop: Umbel, following: str) -> None:
    add_user(shop, "ann", "viewer")
    with served(shop, login=True) as url:
        assert Browser(url).log_in("ann", PASSWORD, following).headers["location"] == "/"


def test_logins_are_limited(shop: Umbel) -> None:
    add_user(shop, "ann", "viewer")
    with served(shop, login=True) as url:
        browser = Browser(url)
        codes = [browser.log_in("ann", f"wrong password {n}").status_code for n in range(7)]
        assert codes == [401] * 5 + [429] * 2
        assert browser.log_in("ann", PASSWORD).status_code == 429


def test_a_token_has_its_role_and_can_be_removed(shop: Umbel) -> None:
    secret = ask(shop, lambda operations: operations.access.add_token("ci", "operator", 60))
    stored = ask(shop, lambda operations: operations.access.tokens())
    assert secret not in repr(stored)
    with served(shop, login=True) as url:
        program = httpx.Client(base_url=url, headers={"authorization": f"Bearer {secret}"})
        answer = program.post(
            "api/v1/actions/publish", json={"task": "shop.add", "arguments": "[]"}
        )
        assert answer.status_code == 200
        assert program.get("api/v1/audit").status_code == 403
        assert program.get(f"api/v1/jobs?token={secret}", headers={"authorization": ""}).status_code
        paths = program.get("api/v1/openapi.json").json()["paths"]
        assert {f"/actions/{name}" for name in ACTIONS} <= paths.keys()
        ask(shop, lambda operations: operations.access.remove_token("ci"))
        assert program.get("api/v1/jobs").status_code == 401


def test_viewers_do_not_get_masked_values(shop: Umbel) -> None:
    [job] = bury(shop, card="hush-hush")
    add_user(shop, "ann", "viewer")
    add_user(shop, "bob", "operator")
    with served(shop, login=True, mask=("card",)) as url:
        viewer, operator = Browser(url), Browser(url)
        viewer.log_in("ann", PASSWORD)
        operator.log_in("bob", PASSWORD)
        for path in ("/", "/jobs", f"/jobs/{job}", "/buried", "/queues/default"):
            assert "hush" not in viewer.get(path).text
            assert "hush" not in viewer.get(f"/api/v1{path if path != '/' else '/overview'}").text
        with viewer.http.stream("GET", f"live?view=/jobs/{job}") as stream:
            assert "hush" not in next(stream.iter_lines())
        assert viewer.get("/api/v1/jobs?text=hush").status_code == 400
        assert "hush-hush" in operator.get(f"/jobs/{job}").text


@pytest.mark.parametrize(
    "path",
    [
        "/static/..%2f..%2fserver.py",
        "/static/%2e%2e/server.py",
        "/jobs?state=nope",
        "/jobs?after=x",
        "/jobs?from=yesterday",
        "/jobs/unknown",
        "/api/v1/none",
        "/live?view=/../etc",
        "/live?view=http://evil.example/",
    ],
)
def test_bad_requests_are_answered_with_an_error(shop: Umbel, path: str) -> None:
    with served(shop) as url:
        assert Browser(url).get(path).status_code in (400, 404)


DJANGO = """
import os, sys
import django
from django.conf import settings

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["shop.example"], SECRET_KEY="x")
django.setup()

from django.core.asgi import get_asgi_application
from django.http import HttpResponse
from django.urls import path
from starlette.applications import Starlette
from starlette.routing import Mount
from umbel import Umbel
from umbel.dashboard import DashboardOptions, dashboard

urlpatterns = [path("shop/", lambda request: HttpResponse("the shop"))]
umbel_app = Umbel(sys.argv[1])
options = DashboardOptions(login=True, hosts=("shop.example",))
application = Starlette(
    routes=[Mount("/ops", dashboard(umbel_app, options)), Mount("/", get_asgi_application())]
)

import asyncio, httpx

async def browse():
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as http:
        print((await http.get("/shop/")).text)
        page = await http.get("/ops/jobs", headers={"accept": "text/html"})
        print(page.status_code, page.headers["location"])
        print("/ops/static/umbel.css" in (await http.get("/ops/login")).text)

asyncio.run(browse())
"""


def test_it_is_mounted_beside_django(shop: Umbel) -> None:
    command = [sys.executable, "-W", "error", "-c", DJANGO, shop.settings.broker]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["the shop", "303 /ops/login?next=/ops/jobs", "True"]


def test_it_is_mounted_under_a_path(shop: Umbel) -> None:
    import asyncio

    from starlette.applications import Starlette
    from starlette.routing import Mount

    options = DashboardOptions(hosts=("shop.example",), login=True)
    site = Starlette(routes=[Mount("/ops", dashboard(shop, options))])
    add_user(shop, "ann", "viewer")

    async def browse() -> None:
        transport = httpx.ASGITransport(site)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as http:
            found = await http.get("/ops/jobs", headers={"accept": "text/html"})
            assert found.headers["location"] == "/ops/login?next=/ops/jobs"
            assert 'href="/ops/static/umbel.css"' in (await http.get("/ops/login")).text

    asyncio.run(browse())
