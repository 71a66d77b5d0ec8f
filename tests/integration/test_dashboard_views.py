"""Saved views of the list of jobs: whose they are, and how many there may be."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from integration.browsing import HOSTILE, PASSWORD, Browser, add_user, bury, served, updates_of
from integration.running import ask_backend
from umbel import Umbel
from umbel.backends import Put
from umbel.control.saved_views import MAX_VIEWS, VIEWS

FAILING = {"state": "buried", "task": "shop.charge", "error": "declined & ü"}


def views_of(browser: Browser) -> dict[str, Any]:
    found = browser.get("/api/v1/views").json()["views"]
    return {view["name"]: view["filters"] for view in found}


def test_a_view_is_saved_replaced_opened_and_deleted(app: Umbel) -> None:
    [job] = bury(app)
    with served(app) as url:
        browser = Browser(url)
        assert browser.act("save-view", name="failing", **FAILING, queue="").json() == {
            "done": "Saved the view failing."
        }
        assert views_of(browser) == {"failing": FAILING}
        assert browser.act("save-view", name="failing", state="buried").status_code == 200
        assert views_of(browser) == {"failing": {"state": "buried"}}
        assert browser.act("save-view", name="Charges", task="shop.charge").status_code == 200
        found = browser.get("/api/v1/views").json()["views"]
        assert [view["name"] for view in found] == ["Charges", "failing"]
        for view in found:
            jobs = browser.get(f"/api/v1/jobs?{view['query']}").json()["jobs"]
            assert [one["id"] for one in jobs] == [job]
        assert browser.act("remove-view", name="failing").status_code == 200
        assert browser.act("remove-view", name="failing").status_code == 409
        assert [*views_of(browser)] == ["Charges"]
    with served(app) as url:  # of another process, later
        assert [*views_of(Browser(url))] == ["Charges"]


def test_a_user_sees_only_the_own_views_and_takes_them_along(shop: Umbel) -> None:
    for name, role in (("ann", "viewer"), ("bob", "admin"), ("annabel", "viewer")):
        add_user(shop, name, role)  # type: ignore[arg-type]
    with served(shop, login=True) as url:
        browsers = {name: Browser(url) for name in ("ann", "bob", "annabel")}
        for name, browser in browsers.items():
            browser.log_in(name, PASSWORD)
            assert browser.act("save-view", name=f"of {name}", state="buried").status_code == 200
        for name, browser in browsers.items():
            assert [*views_of(browser)] == [f"of {name}"]
            assert f"of {name}" not in browser.get("/jobs").text  # which is shared as it changes
        assert Browser(url).get("/api/v1/views").status_code == 401
        assert browsers["ann"].act("remove-view", name="of bob").status_code == 409
        assert browsers["bob"].act("remove-user", name="ann").status_code == 200
        add_user(shop, "ann", "viewer")
        browsers["ann"].log_in("ann", PASSWORD)
        assert views_of(browsers["ann"]) == {}
        assert [*views_of(browsers["annabel"])] == ["of annabel"]


def test_views_are_bounded_in_number_and_size_and_checked(shop: Umbel) -> None:
    with served(shop) as url:
        browser = Browser(url)
        for wrong in (
            *({"name": "x" * 61}, {"name": "a\nb"}, {"name": "a\u202eb"}, {"name": " "}, {}),
            *({"name": "a", "state": "none"}, {"name": "a", "from": "yesterday"}),
            {"name": "a", "text": "é" * 1_000},
        ):
            assert browser.act("save-view", **wrong).status_code == 400, wrong
        longest = "\x01" * 300  # six bytes each as JSON
        for number in range(MAX_VIEWS):
            answer = browser.act("save-view", name=f"{number}", text=longest)
            assert answer.status_code == 200, answer.text
        refused = browser.act("save-view", name="one more")
        assert refused.status_code == 409
        assert "30 saved views" in refused.json()["error"]
        assert browser.act("save-view", name="7", state="buried").status_code == 200
        assert len(views_of(browser)) == MAX_VIEWS


def test_views_that_are_saved_at_the_same_time_are_all_kept(app: Umbel) -> None:
    with served(app) as url:
        browser = Browser(url)
        token, names = browser.token, [f"view {number}" for number in range(12)]
        headers = {"origin": browser.origin, "x-csrf": token}

        def save(name: str) -> int:
            path = "api/v1/actions/save-view"
            return browser.http.post(path, json={"name": name}, headers=headers).status_code

        with ThreadPoolExecutor(6) as executor:
            assert {*executor.map(save, names)} == {200}
        assert {*views_of(browser)} == {*names}


def test_hostile_and_foreign_views_are_shown_harmlessly(shop: Umbel) -> None:
    name = "<script>alert(1)</script>"
    with served(shop) as url:
        browser = Browser(url)
        assert browser.act("save-view", name=name, text=HOSTILE).status_code == 200
        page = browser.get("/views").text
        assert "<script>alert" not in page
        assert "\u202e" not in page
        assert "\x1b" not in page
        for value in (b"{", b'["x"]', b'{"a": 1}', b"\xff"):
            puts = [Put(VIEWS + "local", value)]
            ask_backend(shop, lambda roles, puts=puts: roles.coordination.commit({}, puts))
            assert views_of(browser) == {}
        assert browser.act("save-view", name="new").status_code == 200
        with updates_of(url, "/jobs") as updates:
            assert 'id="views"' in next(updates)["html"]
