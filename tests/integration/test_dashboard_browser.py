"""The dashboard in a real browser: every page at two widths and in two themes, and the actions."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from integration.browsing import bury, declare, served
from integration.conftest import Place, working
from integration.running import ask, until
from umbel import Umbel
from umbel.backends import JobFilter
from umbel.dashboard.readers import PAGES
from umbel.messages import State

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
AXE = Path("/var/tmp/umbel-test-servers/node/node_modules/axe-core/axe.min.js")
FLAGS = ("no-sandbox", "disable-gpu", "disable-background-networking", "disable-component-update")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(CHROMIUM is None, reason="not run: there is no chromium"),
]


def browse(steps: Callable[[Any], None], **settings: Any) -> None:
    """Call the steps with a page of a new browser. A script that fails, fails the test.

    They run in a thread, because Playwright occupies the event loop of its thread.
    """

    def run() -> list[str]:
        errors: list[str] = []
        with sync_api.sync_playwright() as playwright:
            flags = [f"--{flag}" for flag in FLAGS]
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
            page = browser.new_context(**settings).new_page()
            page.set_default_timeout(20_000)
            page.on("pageerror", lambda error: errors.append(str(error)))
            try:
                steps(page)
            finally:
                browser.close()
        return errors

    with ThreadPoolExecutor(1) as executor:
        assert executor.submit(run).result() == []


@pytest.fixture
def shop(place: Place) -> Umbel:
    return declare(place.app())


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_every_page_fits_and_is_accessible(shop: Umbel, width: int, theme: str) -> None:
    [job] = bury(shop)
    values = {"id": job, "key": "limit:shop.count"}
    names = {"queue": "default", "task": "shop.charge", "schedule": "shop.add"}

    def steps(tab: Any) -> None:
        for page in PAGES:
            path = page.path.format(**values, name=names.get(page.name, ""))
            tab.goto(url.rstrip("/") + path)
            assert tab.get_attribute("html", "data-theme") == theme
            assert not tab.evaluate("document.documentElement.scrollWidth > innerWidth"), path
            if AXE.exists():
                tab.add_script_tag(path=str(AXE))
                found = tab.evaluate("axe.run().then(result => result.violations)")
                serious = [one for one in found if one["impact"] in ("serious", "critical")]
                shown = [(path, one["id"], one["nodes"][0]["html"]) for one in serious]
                assert shown == []

    viewport = {"width": width, "height": 900}
    with working(shop), served(shop) as url:
        until(lambda: ask(shop, lambda operations: operations.schedules.all()), "the schedule")
        browse(steps, viewport=viewport, color_scheme=theme, bypass_csp=True)


def test_a_job_is_published_fails_is_retried_and_cancelled(shop: Umbel) -> None:
    def steps(tab: Any) -> None:
        with working(shop):
            tab.goto(f"{url}tasks/shop.charge")
            tab.fill("[data-argument=order]", "7")
            tab.fill("[data-argument=card]", "<b>4711</b>")
            tab.click("button:text-is('Publish')")
            tab.wait_for_selector("#toasts >> text=Published the job")
            tab.goto(f"{url}buried")
            tab.wait_for_selector("td .id")
        tab.click("td .id")
        tab.wait_for_selector(".badge.buried")
        assert "<b>4711</b>" in tab.inner_text("main")
        tab.click("button:text-is('Retry')")
        tab.wait_for_selector(".badge.queued")  # by a live update
        tab.click("button:text-is('Cancel')")
        tab.fill("#why input", "a test")
        tab.click("dialog >> text=Continue")
        tab.wait_for_selector(".badge.cancelled")
        tab.goto(f"{url}audit")
        assert "cancel" in tab.inner_text("main")

    with served(shop) as url:
        browse(steps)
    found = ask(shop, lambda operations: operations.jobs(JobFilter(task="shop.charge")))
    assert [job.reason for job in found] == ["a test"]


def test_an_open_page_follows_the_store(shop: Umbel) -> None:
    def steps(tab: Any) -> None:
        tab.goto(f"{url}queues")
        tab.wait_for_selector("text=No queue holds jobs")
        handle = shop.registry.find("shop.add").delay(1, 2)
        tab.wait_for_selector("text=no worker")
        tab.click("button:text-is('Pause')")
        tab.click("dialog >> text=Continue")
        tab.wait_for_selector("text=paused")
        tab.click("button:text-is('Resume')")
        with working(shop):
            until(lambda: handle.state is State.SUCCEEDED, "the job")
        tab.mouse.move(700, 5)
        tab.goto(f"{url}jobs/{handle.id}")
        tab.wait_for_selector(".badge.succeeded")

    with served(shop) as url:
        browse(steps)


def test_keys_lead_to_pages_and_change_the_theme(shop: Umbel) -> None:
    def steps(tab: Any) -> None:
        tab.goto(url)
        tab.keyboard.press("g")
        tab.keyboard.press("q")
        tab.wait_for_url("**/queues")
        theme = tab.get_attribute("html", "data-theme")
        tab.keyboard.press("t")
        assert tab.get_attribute("html", "data-theme") != theme
        tab.keyboard.press("/")
        tab.keyboard.type("gq")
        assert tab.input_value("#search") == "gq"

    with served(shop) as url:
        browse(steps)
