"""Who uses the dashboard: proxies, several processes, roles that change, and the audit log."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from integration.browsing import PASSWORD, Browser, add_user, served
from integration.command_line import Shell
from integration.conftest import Place
from integration.running import ask, ask_backend, until
from umbel import Umbel
from umbel.backends import Coordination, Roles
from umbel.control import Access, AuditLine, AuditLog, User
from umbel.control.audit import NO_OUTCOME
from umbel.dashboard import DashboardOptions, dashboard
from umbel.dashboard.security import HEADERS
from umbel.errors import NotAllowed, Unavailable
from umbel.telemetry import events

PROXY: dict[str, Any] = {"proxy_header": "X-Remote-User", "proxies": ("127.0.0.1",)}
BASIC = {"authorization": "Basic YW5uOnBhc3N3b3Jk"}


def audit(app: Umbel) -> list[AuditLine]:
    return ask(app, lambda operations: operations.audit.read())[0]


# --- a proxy that knows the user -------------------------------------------------------------


def test_a_user_whom_a_trusted_proxy_names_has_the_role_of_that_user(shop: Umbel) -> None:
    add_user(shop, "ann", "operator")
    with served(shop, **PROXY) as url:
        ann = Browser(url, **{"x-remote-user": "ann"})
        assert "ann" in ann.get("/queues").text
        assert ann.act("pause", scope="queue", name="default").status_code == 200
        assert ann.get("/users").status_code == 403
        unknown = Browser(url, **{"x-remote-user": "eve"})
        assert unknown.get("/queues").status_code == 200
        assert unknown.act("pause", scope="queue", name="default").status_code == 403
        for nobody in (Browser(url), Browser(url, **{"x-remote-user": ""})):
            assert nobody.get("/api/v1/queues").status_code == 401
    assert [(line.user, line.action) for line in audit(shop)] == [("ann", "pause")]


def test_a_proxy_in_a_trusted_network_names_the_user_and_the_address(shop: Umbel) -> None:
    add_user(shop, "ann", "operator")
    options = PROXY | {"proxies": ("::ffff:127.0.0.0/104", "10.0.0.0/8")}
    with served(shop, **options) as url:
        ann = Browser(url, **{"x-remote-user": "ann", "x-forwarded-for": "192.0.2.1, 10.1.2.3"})
        assert ann.act("pause", scope="queue", name="default").status_code == 200
    assert [(line.user, line.address) for line in audit(shop)] == [("ann", "192.0.2.1")]


def test_a_header_that_no_trusted_proxy_has_set_names_nobody(shop: Umbel) -> None:
    add_user(shop, "ann", "admin")
    named = {"x-remote-user": "ann", "x-forwarded-for": "127.0.0.1"}
    with served(shop, proxy_header="X-Remote-User", proxies=("203.0.113.9",)) as url:
        assert Browser(url).get("/api/v1/queues", **named).status_code == 401
    with served(shop, login=True) as url:
        assert Browser(url).get("/api/v1/queues", **named).status_code == 401


def test_a_password_that_a_proxy_passes_on_is_ignored(shop: Umbel) -> None:
    add_user(shop, "ann", "operator")
    with served(shop, **PROXY) as url:
        ann = Browser(url, **BASIC, **{"x-remote-user": "ann"})
        assert ann.act("pause", scope="queue", name="default").status_code == 200
        headers = {"origin": "http://evil.example", "x-csrf": ann.token}
        fields = {"scope": "queue", "name": "default"}
        answer = ann.http.post("api/v1/actions/resume", json=fields, headers=headers)
        assert answer.status_code == 403  # it is no token of a program
    with served(shop, login=True) as url:
        ann = Browser(url, **BASIC)
        assert ann.log_in("ann", PASSWORD).status_code == 303
        assert ann.act("resume", scope="queue", name="default").status_code == 200
        assert Browser(url, **BASIC).get("/api/v1/queues").status_code == 401


def test_a_proxy_that_rewrites_the_host_needs_the_name_that_browsers_use(shop: Umbel) -> None:
    add_user(shop, "ann", "operator")
    with served(shop, login=True, hosts=("ops.example.com",)) as url:
        browser = Browser(url)
        browser.origin = "https://ops.example.com"
        assert browser.log_in("ann", PASSWORD).status_code == 303
        assert browser.act("pause", scope="queue", name="default").status_code == 200
        browser.origin = "https://ops.example.com.evil.example"
        answer = browser.act("resume", scope="queue", name="default")
        assert answer.status_code == 403
        assert "--host-name" in answer.json()["error"]


# --- several processes -----------------------------------------------------------------------


def test_an_open_page_can_act_after_a_restart_and_in_another_process(shop: Umbel) -> None:
    add_user(shop, "ann", "operator")
    with served(shop, login=True) as url:
        browser = Browser(url)
        browser.log_in("ann", PASSWORD)
        token, session = browser.token, browser.http.cookies["umbel-session"]
    with served(shop, login=True) as url:
        browser = Browser(url)
        headers = {"origin": browser.origin, "x-csrf": token, "cookie": f"umbel-session={session}"}
        fields = {"scope": "queue", "name": "default"}
        answer = browser.http.post("api/v1/actions/pause", json=fields, headers=headers)
        assert answer.json() == {"done": "Paused the queue default."}


def test_users_whom_a_proxy_names_have_tokens_of_their_own(shop: Umbel) -> None:
    add_user(shop, "ann", "operator")
    with served(shop, **PROXY) as url:
        eve, ann = Browser(url, **{"x-remote-user": "eve"}), {"x-remote-user": "ann"}
        headers = {"origin": eve.origin, "x-csrf": eve.token, **ann}
        fields = {"scope": "queue", "name": "default"}
        answer = httpx.post(f"{url}api/v1/actions/pause", json=fields, headers=headers)
        assert answer.status_code == 403
        anonymous = Browser(url).token
        headers["x-csrf"] = anonymous
        answer = httpx.post(f"{url}api/v1/actions/pause", json=fields, headers=headers)
        assert answer.status_code == 403


# --- logins ----------------------------------------------------------------------------------


def test_an_attacker_cannot_lock_out_a_user_behind_the_same_proxy(shop: Umbel) -> None:
    add_user(shop, "ann", "admin")
    with served(shop, login=True, proxies=("127.0.0.1",)) as url:
        attacker = Browser(url, **{"x-forwarded-for": "198.51.100.9, 203.0.113.7"})
        codes = [attacker.log_in("ann", "wrong password").status_code for _ in range(7)]
        assert codes == [401] * 5 + [429] * 2
        # What a client claims in front of the proxy's own entry does not help it.
        attacker = Browser(url, **{"x-forwarded-for": "198.51.100.10, 203.0.113.7"})
        assert attacker.log_in("ann", PASSWORD).status_code == 429
        ann = Browser(url, **{"x-forwarded-for": "198.51.100.1"})
        assert ann.log_in("ann", PASSWORD).status_code == 303
    lines = [(line.user, line.address, line.action, line.outcome) for line in audit(shop)]
    wrong = "refused: The name or the password is wrong."
    assert lines == [("ann", "198.51.100.1", "log-in", "done")] + 5 * [
        ("ann", "203.0.113.7", "log-in", wrong)
    ]


def test_the_address_that_a_client_claims_without_a_proxy_is_not_believed(shop: Umbel) -> None:
    with served(shop, login=True) as url:
        codes = [
            Browser(url, **{"x-forwarded-for": f"198.51.100.{n}"}).log_in("ann", "x").status_code
            for n in range(7)
        ]
    assert codes == [401] * 5 + [429] * 2
    assert {line.address for line in audit(shop)} == {"127.0.0.1"}


def test_passwords_are_hashed_two_at_a_time_and_not_on_the_event_loop(
    shop: Umbel, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_user(shop, "ann", "admin")
    scrypt, lock, threads = hashlib.scrypt, threading.Lock(), set()
    running = most = 0

    def watched(*args: Any, **kwargs: Any) -> bytes:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            threads.add(threading.get_ident())
        try:
            return scrypt(*args, **kwargs)
        finally:
            with lock:
                running -= 1

    monkeypatch.setattr("umbel.control.access.hashlib.scrypt", watched)

    async def work(roles: Roles) -> None:
        access = Access(roles.coordination)
        logins = [access.log_in("ann", PASSWORD) for _ in range(8)]
        assert all(await asyncio.gather(*logins))

    ask_backend(shop, work)
    assert threading.get_ident() not in threads
    assert most <= 2


def test_a_logout_deletes_the_cookie_that_the_login_has_set(shop: Umbel) -> None:
    add_user(shop, "ann", "operator")
    with served(shop, login=True, is_https=True) as url:
        browser = Browser(url)
        cookie = browser.log_in("ann", PASSWORD).headers["set-cookie"].partition(";")[0]
        headers = {"origin": browser.origin, "cookie": cookie}
        page = browser.get("/login", **headers).text
        token = page.partition('data-csrf="')[2].partition('"')[0]
        answer = browser.http.post("logout", data={"csrf": token}, headers=headers)
        deleted = answer.headers["set-cookie"]
        assert deleted.startswith('__Host-umbel-session="";')
        for part in ("Max-Age=0", "Path=/;", "Secure", "HttpOnly"):
            assert part in deleted
        assert browser.get("/api/v1/queues", cookie=cookie).status_code == 401
    assert [line.action for line in audit(shop)] == ["log-out", "log-in"]


# --- roles -----------------------------------------------------------------------------------


def test_the_open_page_of_a_user_with_another_role_ends(
    shop: Umbel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("umbel.dashboard.server._USER_CHECK_SECONDS", 0.0)
    add_user(shop, "ann", "operator")
    with served(shop, **PROXY) as url:
        browser = Browser(url, **{"x-remote-user": "ann"})
        with browser.http.stream("GET", "live?view=/queues") as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data:")
            add_user(shop, "ann", "viewer")
            shop.registry.find("shop.add").delay(1, 2)  # the page changes
            assert all("/queues/default" not in line for line in lines)  # and it has ended


def test_the_last_admin_cannot_be_removed_or_demoted_on_the_dashboard(shop: Umbel) -> None:
    add_user(shop, "ann", "admin")
    add_user(shop, "bob", "operator")
    with served(shop, login=True) as url:
        ann = Browser(url)
        ann.log_in("ann", PASSWORD)
        for role in ("viewer", "operator"):
            answer = ann.act("set-user", name="ann", role=role, password=PASSWORD)
            assert answer.status_code == 409
            assert "the only admin" in answer.json()["error"]
        assert ann.act("remove-user", name="ann").status_code == 409
        assert ann.act("set-user", name="bob", role="admin", password=PASSWORD).is_success
        assert ann.act("remove-user", name="ann").is_success
    assert ask(shop, lambda o: o.access.users()) == [User(name="bob", role="admin")]


def test_of_two_admins_who_remove_each_other_one_stays(shop: Umbel) -> None:
    async def work(roles: Roles) -> tuple[Any, ...]:
        access = Access(roles.coordination)
        for name in ("ann", "bob"):
            await access.set_user(name, "admin", PASSWORD)
        removals = [access.remove_user(name, keep_admin=True) for name in ("ann", "bob")]
        return (*await asyncio.gather(*removals, return_exceptions=True), await access.users())

    *results, users = ask_backend(shop, work)
    assert len(users) == 1
    assert [isinstance(one, NotAllowed) for one in results].count(True) == 1


# --- requests that fail ----------------------------------------------------------------------


def test_an_unexpected_error_shows_no_details_and_has_all_headers(
    shop: Umbel, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[events.Event] = []
    shop.telemetry.subscribe(found.append)

    def break_down() -> None:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(shop, "operations", break_down)
    with served(shop) as url:
        for path in ("/queues", "/api/v1/queues", "/live?view=/queues"):
            answer = Browser(url).get(path)
            assert answer.status_code == 500, path
            assert "secret" not in answer.text
            assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    failed = [event for event in found if isinstance(event, events.ServiceFailed)]
    assert "a secret detail" in failed[0].error


def test_addresses_that_cannot_be_read_are_refused(shop: Umbel) -> None:
    with served(shop, login=True) as url:
        browser = Browser(url)
        assert 'name="next" value="/"' in browser.get("/login?next=//[").text
        assert browser.get("/live?view=//[").status_code == 404
        assert browser.get(f"/live?view=/jobs?text={'x' * 4_000}").status_code == 400
        browser.origin = "http://["
        assert browser.log_in("ann", PASSWORD).status_code == 403


def test_who_is_not_logged_in_learns_nothing_about_the_store(shop: Umbel) -> None:
    namespace = shop.settings.namespace
    add_user(shop, "ann", "viewer")
    with served(shop, login=True) as url:
        browser = Browser(url)
        for path in ("/login", "/none", "/queues", "/api/v1/queues"):
            text = browser.get(path).text
            assert namespace not in text
            assert "sqlite" not in text
        browser.log_in("ann", PASSWORD)
        assert namespace in browser.get("/queues").text


def test_a_body_is_read_only_of_a_user(shop: Umbel) -> None:
    with served(shop, login=True) as url:
        place = urlsplit(url)
        connection = http.client.HTTPConnection(str(place.hostname), place.port or 80, timeout=30)
        connection.putrequest("POST", "/api/v1/actions/pause")
        connection.putheader("content-type", "application/json")
        connection.putheader("content-length", "1900000")
        connection.endheaders()
        assert connection.getresponse().status == 401  # although nothing of it was sent
        connection.close()
        answer = Browser(url).http.post("login", data={"name": "x" * 30_000})
        assert answer.status_code == 413


# --- load ------------------------------------------------------------------------------------


def test_more_pages_than_a_slow_store_can_serve_are_refused_with_a_time(
    distant: Place, proxy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from integration.browsing import declare

    monkeypatch.setattr("umbel.dashboard.server._READ_SECONDS", 60.0)
    app = declare(distant.app())
    with served(app) as url, ThreadPoolExecutor(12) as executor:
        assert Browser(url).get("/queues").status_code == 200
        proxy.silence()
        asking = [
            executor.submit(httpx.get, f"{url}api/v1/queues?n={n}", timeout=90) for n in range(12)
        ]
        until(lambda: sum(one.done() for one in asking) >= 8, "the refusals")
        refused = [one.result() for one in asking if one.done()][:8]
        proxy.mend()
        assert {answer.status_code for answer in refused} == {503}
        assert {answer.headers["retry-after"] for answer in refused} == {"5"}
        texts = {answer.json()["error"] for answer in refused}
        assert "Too many pages are read now; try again in some seconds." in texts
        until(lambda: Browser(url).get("/queues").status_code == 200, "the page")


def test_of_many_streams_that_are_opened_at_once_the_rest_is_refused(
    shop: Umbel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("umbel.dashboard.live.MAX_STREAMS_PER_USER", 2)
    scope = {"type": "http", "method": "GET", "path": "/live", "client": ("127.0.0.1", 1)}
    scope |= {"query_string": b"view=/queues", "headers": [(b"host", b"localhost")]}
    scope |= {"asgi": {"version": "3.0", "spec_version": "2.3"}}
    codes: list[int] = []
    updates: list[bytes] = []

    async def receive() -> Any:
        await asyncio.Event().wait()  # the client stays

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            codes.append(message["status"])
        elif message["body"].startswith(b"data: {"):
            updates.append(message["body"])

    async def work() -> None:
        served_app = dashboard(shop, DashboardOptions())
        opened = [asyncio.create_task(served_app({**scope}, receive, send)) for _ in range(10)]
        async with asyncio.timeout(60), served_app.router.lifespan_context(served_app):
            while len(codes) < 10 or len(updates) < codes.count(200):
                await asyncio.sleep(0.001)
            for one in opened:
                one.cancel()
            await asyncio.gather(*opened, return_exceptions=True)

    asyncio.run(work())
    assert sorted(codes) == [200] * 2 + [503] * 8


# --- the audit log ---------------------------------------------------------------------------


class BreakingCoordination:
    """Coordination whose server cannot be reached after some commits."""

    def __init__(self, inner: Coordination, commits: int) -> None:
        self._inner = inner
        self._commits = commits

    async def commit(self, *args: Any, **kwargs: Any) -> Any:
        self._commits -= 1
        if self._commits < 0:
            raise Unavailable("the server is away")
        return await self._inner.commit(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def record(coordination: Any, *, error: Exception | None = None) -> None:
    async with AuditLog(coordination).recorded(user="ann", action="pause") as outcome:
        if error is not None:
            raise error
        outcome.text = "Paused."


def test_an_action_is_in_the_log_although_the_store_was_lost_when_it_was_done(shop: Umbel) -> None:
    ask_backend(shop, lambda roles: record(BreakingCoordination(roles.coordination, 1)))
    [line] = audit(shop)
    assert (line.user, line.action, line.outcome) == ("ann", "pause", NO_OUTCOME)


def test_an_action_that_cannot_be_recorded_is_not_done(shop: Umbel) -> None:
    error = AssertionError("it was done")
    with pytest.raises(Unavailable):
        ask_backend(
            shop, lambda roles: record(BreakingCoordination(roles.coordination, 0), error=error)
        )
    assert audit(shop) == []


def test_an_error_of_an_action_is_not_replaced_by_one_of_the_log(shop: Umbel) -> None:
    error = NotAllowed("the job is running")
    with pytest.raises(NotAllowed, match="running"):
        ask_backend(
            shop, lambda roles: record(BreakingCoordination(roles.coordination, 1), error=error)
        )
    with pytest.raises(NotAllowed):
        ask_backend(shop, lambda roles: record(roles.coordination, error=error))
    assert [line.outcome for line in audit(shop)] == ["refused: the job is running", NO_OUTCOME]


def test_changes_of_the_command_line_are_in_the_audit_log(shell: Shell) -> None:
    import getpass

    shell.say("pause", "--queue", "mail", "--reason", "the provider is down")
    shell.say("resume", "--queue", "mail")
    shell.say("dashboard", "tokens", "add", "ci", "--role", "operator")
    shell.say("dashboard", "tokens", "remove", "ci")
    shell.say("pause", "list")
    shell.say("queues")
    lines = [
        (line.user, line.address, line.action, line.subject, line.reason, line.outcome)
        for line in reversed(audit(Umbel(f"sqlite:///{shell.folder}/umbel.db")))
    ]
    user = getpass.getuser()
    assert lines == [
        (user, "cli", "pause", "queue mail", "the provider is down", "done"),
        (user, "cli", "resume", "queue mail", "", "done"),
        (user, "cli", "add-token", "ci operator", "", "done"),
        (user, "cli", "remove-token", "ci", "", "done"),
    ]
