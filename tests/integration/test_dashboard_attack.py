"""A scripted attack on the dashboard. Each test is one line of the list of verdicts.

Run as a program, it prints the list: ``python -m pytest tests/integration/test_dashboard_attack.py
-v``. The attacker knows the addresses and the code, but no password, and can make the browser of a
logged-in user open any page.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest

from integration.browsing import PASSWORD, Browser, add_user, bury, served
from integration.conftest import working
from integration.running import ask, until
from umbel import Retry, Umbel
from umbel.backends import JobFilter
from umbel.control import Role
from umbel.dashboard.actions import ACTIONS
from umbel.dashboard.openapi import api_path
from umbel.dashboard.pages import PAGES
from umbel.dashboard.security import HEADERS
from umbel.dashboard.visibility import MASKED
from umbel.messages import State

ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")
SCRIPT = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{7*7}}\u202e\x1b[31m"
VALUES = {"id": "none", "name": "shop.add", "key": "limit:shop.count"}
REFUSED = (400, 401, 403, 404, 405, 413, 415, 421)


class Target:
    """A dashboard with a login, and a user of each role."""

    def __init__(self, app: Umbel, url: str) -> None:
        self.app = app
        self.url = url
        self.browsers: dict[str, Browser] = {}

    def as_user(self, role: Role) -> Browser:
        """Return a browser in which a user with this role is logged in."""
        if role not in self.browsers:
            browser = Browser(self.url)
            assert browser.log_in(role, PASSWORD).status_code == 303
            self.browsers[role] = browser
        return self.browsers[role]

    def unchanged(self) -> bool:
        """Return whether nobody has changed anything."""
        paused = ask(self.app, lambda operations: operations.pauses())
        jobs = ask(self.app, lambda operations: operations.jobs(JobFilter()))
        return not paused and not jobs

    def raw(self, method: str, target: str, **headers: str) -> int:
        """Send a request exactly as it is written, and return the status."""
        place = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(place.hostname), place.port or 80, timeout=30)
        connection.putrequest(method, target, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        try:
            return connection.getresponse().status
        finally:
            connection.close()


@pytest.fixture
def target(shop: Umbel) -> Iterator[Target]:
    for role in ROLES:
        add_user(shop, role, role)
    with served(shop, login=True, mask=("card",)) as url:
        yield Target(shop, url)


def addresses() -> list[str]:
    """Return the addresses of all pages and of all data."""
    paths = [page.path.format(**VALUES) for page in PAGES]
    data = ["/api/v1" + api_path(page).format(**VALUES) for page in PAGES]
    streams = [f"/live?view={quote(path)}" for path in paths]
    return [*paths, *data, *streams, "/api/v1/openapi.json", "/api/v1/audit.csv"]


# --- authentication --------------------------------------------------------------------------


def test_authentication_nothing_is_shown_without_a_login(target: Target) -> None:
    anonymous = Browser(target.url)
    for path in addresses():
        answer = anonymous.get(path)
        assert answer.status_code in (303, 401, 404), path
        assert "shop." not in answer.text
    for action in ACTIONS:
        assert anonymous.act(action, scope="all", name="x").status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "//api/v1/jobs",
        "/api/v1/jobs/",
        "/API/V1/jobs",
        "/api/v1/jobs;x=1",
        "/api/v1/./jobs",
        "/login/../api/v1/jobs",
        "/static/../api/v1/jobs",
        "/static/..%2f..%2fapi/v1/jobs",
        "/api/v1/jobs%00",
        "/api/v1/health",
        "/health/../api/v1/jobs",
        "/login/api/v1/jobs",
        "/api/v1/jobs?next=/login",
        "http://127.0.0.1/api/v1/jobs",
    ],
)
def test_authentication_another_spelling_of_a_path_shows_nothing(target: Target, path: str) -> None:
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PROPFIND"):
        assert target.raw(method, path) not in range(200, 300), (method, path)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-remote-user": "admin"},
        {"x-forwarded-user": "admin", "x-forwarded-for": "127.0.0.1"},
        {"x-original-url": "/login", "x-rewrite-url": "/login"},
        {"authorization": "Bearer"},
        {"authorization": "Bearer null"},
        {"authorization": "Basic YWRtaW46YWRtaW4="},
        {"cookie": "umbel-session="},
        {"cookie": "umbel-session=admin"},
        {"cookie": "umbel-session=" + "A" * 8_000},
        {"cookie": "umbel-session=../users/admin"},
        {"cookie": "__Host-umbel-session=x; umbel-session=y"},
    ],
)
def test_authentication_forged_headers_and_cookies_are_no_login(
    target: Target, headers: dict[str, str]
) -> None:
    answer = Browser(target.url).get("/api/v1/jobs", **headers)
    assert answer.status_code in (400, 401, 431)


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("admin", ""),
        ("admin", "' or 1=1 --"),
        ("", ""),
        ("admin\x00", PASSWORD),
        ("ADMIN ", PASSWORD),
        ("../sessions/", PASSWORD),
        ("admin", PASSWORD[:-1]),
        ("admin", "x" * 1_000_000),
        ("%", PASSWORD),
    ],
)
def test_authentication_a_wrong_name_or_password_is_no_login(
    target: Target, name: str, password: str
) -> None:
    answer = Browser(target.url).log_in(name, password)
    assert answer.status_code in REFUSED
    assert "set-cookie" not in answer.headers


def test_authentication_passwords_cannot_be_tried_fast(target: Target) -> None:
    browser = Browser(target.url)
    codes = [browser.log_in("admin", f"wrong password {n}").status_code for n in range(8)]
    assert codes.count(401) == 5
    assert codes[5:] == [429] * 3
    # Many users from one address are limited, too.
    codes = [browser.log_in(f"user{n}", "wrong password").status_code for n in range(30)]
    assert codes[-1] == 429


# --- CSRF ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "{own}.evil.example"},
        {"origin": "http://evil.example", "sec-fetch-site": "cross-site"},
        {"origin": "{own}", "sec-fetch-site": "cross-site"},
        {"origin": "{own}", "sec-fetch-site": "same-site"},
        {"origin": "{own}"},  # without a token
        {"origin": "{own}", "x-csrf": ""},
        {"origin": "{own}", "x-csrf": "0" * 64},
        {"origin": "{own}", "x-csrf": "{other}"},
        {"referer": "{own}/"},
    ],
)
@pytest.mark.parametrize(
    "kind", ["application/json", "application/x-www-form-urlencoded", "text/plain"]
)
def test_csrf_another_site_cannot_act_for_a_user(
    target: Target, headers: dict[str, str], kind: str
) -> None:
    browser = target.as_user("admin")
    other = target.as_user("viewer").token
    filled = {n: v.format(own=browser.origin, other=other) for n, v in headers.items()}
    body = '{"scope": "all", "reason": "x"}' if "json" in kind else "scope=all&reason=x"
    answer = browser.http.post(
        "api/v1/actions/pause", content=body, headers={**filled, "content-type": kind}
    )
    assert answer.status_code in (403, 415)
    assert target.unchanged()


def test_csrf_no_get_changes_anything(target: Target) -> None:
    browser = target.as_user("admin")
    for action in ACTIONS:
        query = f"scope=all&name=default&csrf={browser.token}"
        assert browser.get(f"/api/v1/actions/{action}?{query}").status_code == 405
    assert browser.get("/logout").status_code == 405
    assert browser.get("/api/v1/jobs").status_code == 200  # still logged in
    assert target.unchanged()


def test_csrf_another_site_can_neither_log_in_nor_log_out(target: Target) -> None:
    browser = target.as_user("operator")
    evil = {"origin": "http://evil.example"}
    fields = {"name": "viewer", "password": PASSWORD, "csrf": browser.token}
    assert browser.http.post("login", data=fields, headers=evil).status_code == 403
    assert browser.http.post("logout", data={"csrf": "x"}, headers=evil).status_code == 403
    assert browser.get("/api/v1/jobs").status_code == 200


# --- roles -----------------------------------------------------------------------------------


def test_roles_every_page_and_action_refuses_a_lower_role(target: Target) -> None:
    for role in ROLES:
        browser = target.as_user(role)
        for page in PAGES:
            if ROLES.index(role) < ROLES.index(page.role):
                path = page.path.format(**VALUES)
                assert browser.get(path).status_code == 403
                assert browser.get("/api/v1" + api_path(page)).status_code == 403
                assert browser.get(f"/live?view={path}").status_code in (403, 404)
        for action in ACTIONS.values():
            if ROLES.index(role) < ROLES.index(action.role):
                fields = {"scope": "all", "name": role, "role": "admin", "password": PASSWORD}
                assert browser.act(action.name, **fields).status_code == 403
    assert target.as_user("operator").get("/api/v1/audit.csv").status_code == 403
    roles = {u.name: u.role for u in ask(target.app, lambda o: o.access.users())}
    assert roles == {role: role for role in ROLES}
    assert target.unchanged()


def test_roles_a_token_has_no_more_than_its_own_role(target: Target) -> None:
    secret = ask(target.app, lambda o: o.access.add_token("ci", "viewer", 60))
    headers = {"authorization": f"Bearer {secret}"}
    for action in (name for name, one in ACTIONS.items() if one.role != "viewer"):
        answer = httpx.post(
            f"{target.url}api/v1/actions/{action}", json={"scope": "all"}, headers=headers
        )
        assert answer.status_code == 403
    assert target.unchanged()


def test_roles_masked_values_reach_no_viewer(target: Target) -> None:
    members = {"one": {"password": "hush-pool"}}
    ask(target.app, lambda operations: operations.add_members("accounts", members))
    newer = Umbel(target.app.settings.broker, namespace=target.app.settings.namespace)

    @newer.task(name="shop.charge")
    def charge(order: int, card: str, pin: str) -> None: ...

    rejected = charge.delay(1, "hush-card", "hush-pin").id
    [job] = bury(target.app, card="hush-hush")
    until(lambda: target.app.handle(rejected).state is State.BURIED, "the rejected job")
    viewer = target.as_user("viewer")
    groups = viewer.get("/api/v1/buried").json()["groups"]
    assert {group["error"] for group in groups} == {"ValueError", MASKED}
    jobs = [f"{api}/jobs/{one}" for api in ("", "/api/v1") for one in (job, rejected)]
    for path in (*addresses(), *jobs, "/queues/default"):
        with viewer.http.stream("GET", path.lstrip("/")) as answer:
            kind = answer.headers.get("content-type", "")
            text = next(answer.iter_lines(), "") if "event-stream" in kind else answer.read()
        assert "hush" not in str(text), path
    for query in ("text=hush", "error=hush", "text=card=hush-hush"):
        assert viewer.get(f"/api/v1/jobs?{query}").status_code == 400


def test_roles_masked_defaults_and_reasons_reach_no_viewer(target: Target) -> None:
    app = target.app

    @app.task(name="shop.pay", retry=Retry(0), every=1)
    def pay(order: int = 7, card: str = "hush-card", more: Any = {"card": "hush-more"}) -> None:  # noqa: B006
        raise RuntimeError(f"declined {card}")

    @app.workflow(name="shop.order")
    def order(order: int = 7, card: str = "hush-card") -> Any:
        return pay.s(order, card)

    def history() -> Any:
        answer = operator.get("/api/v1/schedules/shop.pay")
        return answer.json()["history"] if answer.is_success else []

    operator, viewer = target.as_user("operator"), target.as_user("viewer")
    with working(app):
        until(history, "a job of the schedule")
        ended = history()[0]["job"]
        until(lambda: app.handle(ended).state.finished, "its end")
    ask(app, lambda o: o.pause("queue", "default", ""))
    waiting = ask(app, lambda o: o.schedules.trigger("shop.pay"))[0]
    assert operator.act("retry", job=ended, seen="buried").is_success
    assert operator.act("cancel", job=ended, reason="the card hush-reason").is_success
    assert operator.act("edit", job=ended, arguments='{"card": "hush-new"}').is_success
    assert operator.act("cancel", job=ended, reason="the card hush-reason").is_success
    assert operator.act("publish", task="shop.pay", arguments='{"order": "hush-wrong"}').is_error
    paths = ("schedules/shop.pay", "tasks/shop.pay", "tasks", "workflows/shop.order", "workflows")
    for path in (*paths, "schedules", f"jobs/{ended}", f"jobs/{waiting}", "jobs", "audit"):
        for address in (f"/{path}", f"/api/v1/{path}", f"/live?view=/{path}"):
            with viewer.http.stream("GET", address.lstrip("/")) as answer:
                kind = answer.headers.get("content-type", "")
                text = next(answer.iter_lines(), "") if "event-stream" in kind else answer.read()
            assert "hush" not in str(text), address
    for path in ("tasks/shop.pay", "workflows/shop.order"):
        assert " = 7, " in viewer.get(f"/api/v1/{path}").text
        assert "hush-card" in operator.get(f"/api/v1/{path}").text
    assert "hush-reason" in operator.get("/api/v1/schedules/shop.pay").text


# --- XSS -------------------------------------------------------------------------------------


def assert_harmless(text: str, where: str) -> None:
    """Check that a page has no script but its own, and none of the attacker's characters."""
    assert "<script>alert" not in text, where
    assert "<img src=x" not in text, where
    assert ">49<" not in text, where
    assert "\x1b" not in text, where
    tags = Tags()
    tags.feed(text)
    for tag, attributes in tags.found:
        assert tag != "script" or "/static/umbel.js" in attributes["src"], where
        for name, value in attributes.items():
            assert not name.startswith("on"), where
            assert name != "style", where
            # What forms send must be exact.
            assert name == "value" or "\u202e" not in value, where
            if name in ("href", "src", "action"):
                assert not value.lower().strip().startswith("javascript:"), where
    assert "\u202e" not in tags.text, where


class Tags(HTMLParser):
    """The tags of a page with their attributes, as a browser reads them, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_xss_texts_of_jobs_and_of_addresses_are_only_shown(target: Target) -> None:
    app = target.app
    bury(app, card=SCRIPT)
    hostile = SCRIPT.replace("\x1b", "")
    app.registry.find("shop.add").options(queue=hostile).delay()
    ask(app, lambda o: o.pause("queue", hostile, SCRIPT))
    admin = target.as_user("admin")
    attack = quote(SCRIPT.replace("\x1b", ""))
    for page in PAGES:
        for value in (quote(hostile, safe=""), "javascript:alert(1)"):
            path = page.path.format(id=value, name=value, key=value)
            query = "&".join(f"{name}={attack}" for name in page.parameters)
            for address in (path, f"{path}?{query}"):
                answer = admin.get(address)
                assert answer.status_code < 500, address
                if "text/html" in answer.headers["content-type"]:
                    assert_harmless(answer.text, address)
    for address in (f"/login?next={attack}", f"/{attack}", f"/live?view={attack}"):
        answer = admin.get(address)
        if "text/html" in answer.headers["content-type"]:
            assert_harmless(answer.text, address)


def test_xss_names_of_queues_tasks_and_gates_are_only_shown(target: Target) -> None:
    app = target.app
    name = "".join(filter(str.isprintable, SCRIPT))  # others are refused in some names

    @app.task(name=name, queue=name, every=3600, limit=1)
    def work(card: str = "") -> None: ...

    @app.workflow(name=f"{name}.flow")
    def flow() -> Any:
        return work.s()

    work.delay(name)
    ask(app, lambda o: o.pause("queue", name, name))
    named = quote(name, safe="")
    admin = target.as_user("admin")
    with working(app, queues=(name,)):
        until(lambda: ask(app, lambda o: o.schedules.all()), "the schedules")
        for page in PAGES:
            if page.name in ("job", "graph", "routes"):
                continue
            values = {"name": named, "key": f"limit:{named}", "id": ""}
            if page.name == "workflow":
                values["name"] += ".flow"
            path = page.path.format(**values)
            answer = admin.get(path)
            assert answer.status_code == 200, (path, answer.text)
            assert_harmless(answer.text, path)
            if "{" in page.path:
                assert "&lt;script&gt;alert(1)&lt;/script&gt;" in answer.text, path
            update = admin.http.stream("GET", f"live?view={quote(path, safe='')}")
            if page.seconds:
                with update as stream:
                    shown = json.loads(next(stream.iter_lines())[5:])["html"]
                    assert_harmless(shown, path)


def test_xss_every_answer_forbids_scripts_of_others(target: Target) -> None:
    admin = target.as_user("admin")
    for path in (*addresses(), "/login", "/none", "/static/umbel.js", "/static/none"):
        with admin.http.stream("GET", path.lstrip("/")) as answer:
            for name, value in HEADERS.items():
                assert answer.headers.get(name) == value, (path, name)
    policy = HEADERS["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


# --- DNS rebinding ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil.example:8080",
        "127.0.0.1@evil.example",
        "127.1",
        "2130706433",
        "[::ffff:7f00:1]",
        "127.0.0.1, evil.example",
        "",
    ],
)
def test_dns_rebinding_another_host_name_is_refused(shop: Umbel, host: str) -> None:
    with served(shop) as url:  # no login is needed here: the attack would be worth most
        open_target = Target(shop, url)
        for path in ("/", "/api/v1/jobs", "/live?view=/", "/login"):
            for extra in ({}, {"X-Forwarded-Host": "127.0.0.1"}):
                assert open_target.raw("GET", path, Host=host, **extra) in (400, 421)


# --- open redirect ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "following",
    [
        "//evil.example",
        "///evil.example",
        "http://evil.example/",
        "https:evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "/\t/evil.example",
        "/\n/evil.example",
        "javascript:alert(1)",
        "data:text/html,x",
        "/jobs\r\nSet-Cookie: umbel-session=x",
        "//evil.example/%2e%2e",
        "\u2028//evil.example",
    ],
)
def test_open_redirect_a_login_leads_to_no_other_site(target: Target, following: str) -> None:
    answer = Browser(target.url).log_in("viewer", PASSWORD, following)
    assert answer.headers["location"] == "/"
    page = Browser(target.url).get(f"/login?next={quote(following, safe='')}").text
    assert 'name="next" value="/"' in page


# --- path traversal --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static/%2e%2e/server.py",
        "/static/..%5cserver.py",
        "/static/....//server.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/umbel.js/../../server.py",
        "/static/umbel.js%00.css",
        "/static/",
        "/static/../templates/base.html",
    ],
)
def test_path_traversal_no_other_file_is_served(target: Target, path: str) -> None:
    assert target.raw("GET", path) in (400, 401, 404, 405)


@pytest.mark.parametrize(
    "view",
    ["/../etc/passwd", "file:///etc/passwd", "http://127.0.0.1/", "//evil.example/", "/static/x"],
)
def test_path_traversal_a_stream_shows_only_pages(target: Target, view: str) -> None:
    answer = target.as_user("admin").get(f"/live?view={quote(view, safe='')}")
    assert answer.status_code == 404


# --- session fixation ------------------------------------------------------------------------


def test_session_fixation_a_login_makes_a_new_session_and_a_logout_ends_it(target: Target) -> None:
    browser = Browser(target.url)
    browser.http.cookies.set("umbel-session", "chosen by an attacker")
    first = _cookie(browser.log_in("operator", PASSWORD))
    second = _cookie(Browser(target.url).log_in("operator", PASSWORD))
    assert len({first, second, "chosen by an attacker"}) == 3
    assert len(first) >= 32
    stolen = {"cookie": f"umbel-session={first}"}
    assert Browser(target.url).get("/api/v1/jobs", **stolen).status_code == 200
    browser.http.cookies.clear()
    browser.http.cookies.set("umbel-session", first)
    headers = {"origin": browser.origin}
    browser.http.post("logout", data={"csrf": browser.token}, headers=headers)
    assert Browser(target.url).get("/api/v1/jobs", **stolen).status_code == 401


def test_session_fixation_cookies_cannot_be_read_or_sent_by_others(target: Target) -> None:
    answer = Browser(target.url).log_in("viewer", PASSWORD)
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Domain" not in cookie
    with served(target.app, login=True, is_https=True) as url:
        browser = Browser(url)
        cookie = browser.log_in("viewer", PASSWORD).headers["set-cookie"]
        assert cookie.startswith("__Host-umbel-session=")
        assert "Secure" in cookie
        assert "Path=/;" in cookie


def _cookie(answer: httpx.Response) -> str:
    return answer.headers["set-cookie"].partition("=")[2].partition(";")[0]


# --- token leakage ---------------------------------------------------------------------------


def test_token_leakage_secrets_are_in_no_answer_and_not_in_the_store(target: Target) -> None:
    app, admin = target.app, target.as_user("admin")
    secret = ask(app, lambda o: o.access.add_token("ci", "operator", 60))
    session = admin.http.cookies["umbel-session"]
    assert admin.act(
        "set-user", name="eve", role="viewer", password="a very secret word"
    ).is_success
    for path in addresses():
        with admin.http.stream("GET", path.lstrip("/")) as answer:
            kind = answer.headers.get("content-type", "")
            text = str(next(answer.iter_lines(), "") if "stream" in kind else answer.read())
        for hidden in (secret, session, PASSWORD, "a very secret word", "scrypt"):
            assert hidden not in text, path

    async def entries(operations: Any) -> str:
        found = [await operations._roles.coordination.read(f"{name}/") for name in _SECTIONS]
        return repr([entry for page in found for entry in page.entries])

    stored = ask(app, entries)
    for hidden in (secret, session, PASSWORD, "a very secret word"):
        assert hidden not in stored


_SECTIONS = ("audit", "users", "sessions", "tokens")


def test_token_leakage_no_answer_leads_to_another_scheme_or_host(target: Target) -> None:
    admin = target.as_user("admin")
    for path in ("/login/", "/live/", "/static", "/api/v1", "/api/v1/jobs/", "/api/v1/live/"):
        assert admin.get(path).headers.get("location") is None, path
    headers = {"origin": admin.origin, "x-csrf": admin.token}
    answer = admin.http.post("api/v1/actions/pause/", json={"scope": "all"}, headers=headers)
    assert answer.status_code == 404
    assert target.unchanged()


def test_token_leakage_a_token_in_an_address_is_no_login(target: Target) -> None:
    secret = ask(target.app, lambda o: o.access.add_token("ci", "admin", 60))
    anonymous = Browser(target.url)
    for query in (f"token={secret}", f"access_token={secret}", f"authorization=Bearer {secret}"):
        assert anonymous.get(f"/api/v1/jobs?{query}").status_code == 401
    answer = target.as_user("admin").get("/jobs")
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["cache-control"] == "no-store"
    assert "server" not in answer.headers
    ask(target.app, lambda o: o.access.remove_token("ci"))
    headers = {"authorization": f"Bearer {secret}"}
    assert anonymous.get("/api/v1/jobs", **headers).status_code == 401
