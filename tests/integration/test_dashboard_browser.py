"""The dashboard in a real browser: every page and every action on each store, in both themes."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from integration.browsing import PASSWORD, bury, declare, served
from integration.conftest import Place, working
from integration.orders import Orders, declare_fulfilment
from integration.running import Signal, ask, until
from umbel import Retry, Umbel
from umbel.app.schedules import make_template
from umbel.backends import JobFilter, Put
from umbel.charts.counters import BOUNDS, Counters, DepthSums, TaskCounts, encode
from umbel.charts.folding import TEN_SECONDS
from umbel.control import DeploymentPlan
from umbel.dashboard.actions import ACTIONS
from umbel.dashboard.graph_actions import GRAPH_ACTIONS
from umbel.dashboard.pages import PAGES
from umbel.dashboard.saved_views import VIEW_ACTIONS
from umbel.messages import State, fresh_id
from umbel.operations import Operations
from umbel.schedules import Plan, make_timing

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
AXE = Path("/var/tmp/umbel-test-servers/node/node_modules/axe-core/axe.min.js")
FLAGS = ("no-sandbox", "disable-gpu", "disable-background-networking", "disable-component-update")
ASSETS = Path(__file__).parents[2] / "docs" / "assets"
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
RUN = "0190a000-0000-7000-8000-000000000007"
HOSTILE = "<img src=x onerror=alert(1)>\u202e\x1b[31m"
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
            page.on("dialog", lambda dialog: errors.append(f"a script ran: {dialog.message}"))
            try:
                steps(page)
            finally:
                browser.close()
        return errors

    with ThreadPoolExecutor(1) as executor:
        assert executor.submit(run).result() == []


def inquire(app: Umbel, question: Callable[[Operations], Any]) -> Any:
    """Ask beside Playwright, which occupies the event loop of its thread."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(ask, app, question).result()


def declare_more(app: Umbel) -> Umbel:
    """Declare tasks with a pool, with routes, and with steps that can be held."""
    printers = app.pool("printers", ("north", "south"))
    app.running, app.go = Signal(), Signal()  # type: ignore[attr-defined]

    @app.task(name="shop.print", pool=printers)
    def print_label(order: int) -> None:
        """Print a label."""

    @app.task(name="shop.plan", affinity="plan", rate="100/s")
    async def compute(plan: str) -> None:
        app.running.set()  # type: ignore[attr-defined]
        await app.go.seen()  # type: ignore[attr-defined]

    return app


def add_schedule(app: Umbel) -> None:
    """Add a schedule that no code declares."""
    template = make_template("extra", app.registry.find("shop.add").s(1, 2), app.build)
    plan = Plan(timing=make_timing(every=86_400))
    ask(app, lambda operations: operations.schedules.add("extra", plan, template, "a test"))


async def begin_deployment(operations: Operations) -> None:
    plan = DeploymentPlan(id=fresh_id(), who="ann", host="web", pid=1, reason="a new release")
    await operations.deploy.begin(plan)


@pytest.fixture
def place(app: Umbel) -> Umbel:
    """The shop with pools and routes on each store."""
    return declare_more(app)


# --- pages -----------------------------------------------------------------------------------


def check_page(tab: Any, path: str) -> None:
    """Check that an open page fits at both widths, and is accessible if axe is loaded."""
    shown = []
    for viewport in (PHONE, DESKTOP):
        tab.set_viewport_size(viewport)
        wide = tab.evaluate(
            "[...document.querySelectorAll('main *')].filter(one => "
            "one.getBoundingClientRect().right > innerWidth + 1 && !one.closest('.rows thead'))"
            ".map(one => one.outerHTML.slice(0, 80))"
        )
        if tab.evaluate("document.documentElement.scrollWidth > innerWidth"):
            shown.append((path, viewport["width"], wide[:3]))
    if tab.evaluate("typeof axe") != "undefined":
        for options in ("{}", "{runOnly: ['color-contrast']}"):  # of the other theme
            found = tab.evaluate(f"axe.run({options}).then(result => result.violations)")
            serious = [one for one in found if one["impact"] in ("serious", "critical")]
            theme = tab.get_attribute("html", "data-theme")
            shown += [(path, theme, one["id"], one["nodes"][0]["html"]) for one in serious]
            tab.keyboard.press("t")
    assert shown == []


def take_pictures(tab: Any, store: str, name: str) -> None:
    """Write pictures of an open page to the folder in UMBEL_SCREENSHOTS, if there is one."""
    folder = os.environ.get("UMBEL_SCREENSHOTS")
    if not folder:
        return
    for viewport in (DESKTOP, PHONE):
        tab.set_viewport_size(viewport)
        for theme in ("light", "dark"):
            tab.evaluate(f"setTheme('{theme}')")
            path = Path(folder) / f"{store}-{name}-{viewport['width']}-{theme}.png"
            tab.screenshot(path=str(path), full_page=True)


def test_every_page_fits_is_accessible_and_shows_hostile_text_harmlessly(place: Umbel) -> None:
    [job] = bury(place, card=HOSTILE + "x" * 5_000)
    place.registry.find("shop.count").options(queue=HOSTILE.replace("\x1b", "")).delay(1)
    values = {"id": job, "key": quote("limit:shop.count")}
    names = {"queue": "default", "task": "shop.charge", "schedule": "shop.add"}
    names |= {"workflow": "shop.restock"}
    run = place.workflows["shop.restock"].delay(3).id

    def steps(tab: Any) -> None:
        for page in PAGES:
            path = page.path.format(**values, name=names.get(page.name, ""))
            path = path.replace(job, f"{run}?node=add") if page.name == "graph" else path
            tab.goto(url.rstrip("/") + path)
            if AXE.exists():
                tab.add_script_tag(path=str(AXE))
            check_page(tab, path)
            take_pictures(tab, urlsplit(place.settings.broker).scheme, page.name)
        tab.goto(f"{url}jobs/none")
        tab.wait_for_selector("text=Not found")

    with working(place), served(place) as url:
        place.registry.find("shop.plan").delay("7")
        place.running.wait()  # type: ignore[attr-defined]
        until(lambda: ask(place, lambda operations: operations.schedules.all()), "the schedule")
        ask(place, begin_deployment)
        try:
            browse(steps, viewport=DESKTOP, color_scheme="light", bypass_csp=True)
        finally:
            place.go.set()  # type: ignore[attr-defined]


def test_empty_pages_say_what_to_do(shop: Umbel) -> None:
    texts = {
        "overview": "Nothing was published yet",
        "jobs": "No jobs match",
        "graphs": "No graphs",
        "queues": "No queue holds jobs",
        "workers": "No workers are running",
        "schedules": "No schedules",
        "gates": "No limits",
        "routes": "No routes",
        "deployments": "No deployment is in progress",
        "buried": "Nothing is buried",
        "audit": "No actions yet",
        "users": "No users",
        "views": "No saved views",
    }

    def steps(tab: Any) -> None:
        for page in PAGES:
            if page.name in texts:
                tab.goto(url.rstrip("/") + page.path)
                assert texts[page.name] in tab.inner_text("main")
        tab.goto(url)
        tab.keyboard.press("Tab")
        assert tab.evaluate("document.activeElement.className") == "skip"

    with served(shop) as url:
        browse(steps, viewport=PHONE, color_scheme="dark")


def test_a_name_that_fits_into_a_line_of_a_phone_is_not_broken(shop: Umbel) -> None:
    names = ("examples.demo.tasks.print_invoice", "a.name.longer.than.the.screen." + "x" * 60)
    for name in names:
        shop.task(name=name)(lambda: None).delay()

    def steps(tab: Any) -> None:
        tab.goto(f"{url}jobs")
        lines = [tab.locator(f"td.name:has-text('{name}') a").bounding_box() for name in names]
        assert lines[0]["height"] < 30 < lines[1]["height"], "a line is 20 px high"
        assert tab.evaluate("document.documentElement.scrollWidth") == PHONE["width"]

    with served(shop) as url:
        browse(steps, viewport=PHONE)


# --- actions ---------------------------------------------------------------------------------


class Operator:
    """Clicks on pages, and remembers which actions were done."""

    def __init__(self, tab: Any, url: str) -> None:
        self.tab = tab
        self.url = url
        self.done: list[str] = []

    def open(self, path: str) -> None:
        self.tab.goto(self.url.rstrip("/") + path)

    def click(self, action: str, *, near: str = "", typed: str = "", said: str = "") -> None:
        """Click the button of an action, answer its question, and wait for what it says."""
        where = f"tr:has-text('{near}') " if near else ""
        form = self.tab.locator(f"{where}form[action$='/actions/{action}']").first
        with self.tab.expect_response(f"**/api/v1/actions/{action}") as answer:
            asks = form.get_attribute("data-ask") is not None
            form.locator("button").click()
            if asks:
                self.tab.wait_for_selector("dialog[open]")
                if typed:
                    self.tab.fill("#typed input", typed)
                self.tab.click("dialog[open] button[value=yes]")
        assert answer.value.ok, answer.value.text()
        self.done.append(action)
        told = answer.value.json()["done"]
        assert said in told
        self.tab.wait_for_selector(f"#toasts >> text={told}")


def test_every_action_is_done_on_a_page(place: Umbel) -> None:
    [job] = bury(place)
    add_schedule(place)
    finished: list[list[str]] = []

    def steps(tab: Any) -> None:
        operator = Operator(tab, url)
        finished.append(operator.done)
        click, go = operator.click, operator.open
        with working(place, index=3):
            place.registry.find("shop.plan").delay("7")
            place.running.wait()  # type: ignore[attr-defined]
            until(lambda: inquire(place, lambda o: o.routes()), "the route")
            go("/workers")
            click("pause", said="Paused the worker")
            tab.wait_for_selector(".badge:text-is('paused')")  # by a live update
            click("resume")
            click("retire", said="1 route moves")
            tab.wait_for_selector("form[action$='/actions/unretire']")
            click("unretire")
            go("/routes?key=7")
            click("move-route", typed="3", said="the index 3")
            click("release")
            go("/gates")
            click("set-limit", near="limit:shop.count", typed="5", said="now admits 5 jobs")
            click("set-rate", near="rate:shop.plan", typed="5/s", said="start at 5/s")
            click("drain", near="north", said="gets no new jobs")
            tab.wait_for_selector("tr:has-text('north') form[action$='/actions/ready']")
            click("ready", near="north")
            click("remove-member", near="south", typed="south", said="was removed")
            until(lambda: len(inquire(place, lambda o: o.schedules.all())) == 2, "the schedules")
            go("/schedules/shop.add")
            click("trigger", said="Published the job")
            click("pause-schedule")
            tab.wait_for_selector("form[action$='/actions/resume-schedule']")
            click("resume-schedule")
            tab.fill("input[name=cron]", "0 3 * * *")
            tab.fill("input[name=zone]", "Europe/Vienna")
            click("edit-schedule", said="The schedule fires")
            tab.reload()
            click("reset-schedule", said="as in the code")
            go("/schedules/extra")
            click("remove-schedule", said="were removed")
            place.go.set()  # type: ignore[attr-defined]
            inquire(place, begin_deployment)
            go("/deployments")
            tab.wait_for_selector("form[action$='/actions/take-over-deployment']")  # live
            click("take-over-deployment", typed="ann", said="workers can be stopped now")
            click("end-deployment")
        go(f"/jobs/{job}")
        click("retry", said="queued again")
        tab.wait_for_selector(".badge.queued")
        tab.keyboard.press("c")  # a key, with a question
        tab.fill("#why input", "a test")
        tab.click("dialog[open] button[value=yes]")
        tab.wait_for_selector(".badge.cancelled")
        operator.done.append("cancel")
        tab.fill("textarea", '{"order": 8, "card": "<b>4712</b>"}')
        click("edit", said="was changed")
        go("/tasks/shop.charge")
        tab.fill("[data-argument=order]", "9")
        tab.fill("[data-argument=card]", "<b>4713</b>")
        click("publish", said="Published the job")
        with working(place):
            charged = JobFilter(task="shop.charge", states=(State.BURIED,))
            until(lambda: len(inquire(place, lambda o: o.jobs(charged))) == 2, "two buried jobs")
        go("/buried")
        click("retry-group", said="2 jobs are queued again")
        go("/queues/default")
        click("move", typed="slow", said="jobs were moved")
        go("/queues/slow")
        click("purge", typed="slow", said="jobs are cancelled")
        place.registry.find("shop.charge").delay(10)
        with working(place):
            until(lambda: inquire(place, lambda o: o.jobs(charged)), "a buried job")
        go("/buried")
        click("forget-group", typed="shop.charge", said="1 job was deleted")
        go("/users")
        tab.fill("input[name=name]", "ann")
        tab.fill("input[name=password]", PASSWORD)
        click("set-user", said="ann is a user")
        go("/users")
        click("remove-user", near="ann")
        for name in ("shop.add", "shop.add"):
            place.registry.find(name).options(delay=600).delay()
        go("/jobs?state=scheduled")
        tab.click("button:text-is('Cancel all that match')")
        tab.click("dialog[open] button[value=yes]")
        tab.wait_for_selector("#toasts >> text=jobs are cancelled")
        go("/jobs?state=cancelled&task=shop.add")
        tab.check("[data-job] >> nth=0")
        click("retry-jobs", said="1 job is queued again")
        operator.done.append("cancel-jobs")
        go("/audit")
        assert "remove-user" in tab.inner_text("main")
        with tab.expect_download() as download:
            tab.click("text=Download as CSV")
        assert "remove-user" in Path(download.value.path()).read_text()

    with served(place) as url:
        try:
            browse(steps, viewport=DESKTOP)
        finally:
            place.go.set()  # type: ignore[attr-defined]
    assert {*finished[0]} == {*ACTIONS} - {one.name for one in (*GRAPH_ACTIONS, *VIEW_ACTIONS)}
    jobs = inquire(place, lambda operations: operations.jobs(JobFilter(task="shop.charge")))
    assert {job.state for job in jobs} == {State.CANCELLED}


def test_a_run_is_started_followed_failed_and_repaired_on_its_page(sqlite: Place) -> None:
    orders = Orders(sqlite.app())
    finished: list[list[str]] = []

    def steps(tab: Any) -> None:
        operator = Operator(tab, url)
        finished.append(operator.done)
        click = operator.click

        def box(task: str, state: str) -> Any:
            return tab.wait_for_selector(f"a.node.{state}:has-text('{task}')")

        operator.open("/workflows")
        tab.click("td a:has-text('order.fulfil')")
        tab.fill("[data-argument=order]", "7")
        click("start-workflow", said="Started the run")
        tab.mouse.move(700, 5)
        tab.click("td a.id")
        box("order.charge", "succeeded")
        click("signal", said="approved was given")
        tab.wait_for_selector("h1 .badge.succeeded")  # by a live update, as all below
        assert "order 7 shipped" in tab.inner_text("main")

        orders.is_declining = True
        run = orders.fulfil.delay(8)
        operator.open(f"/graphs/{run.id}")
        tab.wait_for_selector("h1 .badge.buried")
        box("order.charge", "buried").focus()
        tab.keyboard.press("Enter")
        tab.wait_for_selector("#panel >> text=ValueError: card 4711 was declined")
        if AXE.exists():
            tab.add_script_tag(path=str(AXE))
        check_page(tab, "the page of a graph with a panel")
        orders.is_declining = False
        tab.click("button:text-is('Retry from here')")
        tab.click("dialog[open] button[value=yes]")
        box("order.charge", "succeeded")
        click("signal")
        tab.wait_for_selector("h1 .badge.succeeded")

        orders.is_declining = True
        run = orders.fulfil.delay(9)
        operator.open(f"/graphs/{run.id}?node=charge")
        tab.wait_for_selector("h1 .badge.buried")
        click("retry-graph", said="The graph continues")
        until(lambda: orders.charged.count(9) == 2, "the card to be charged again")
        until(lambda: run.state is State.BURIED, "the run to fail again")
        tab.click("summary")
        tab.fill("textarea", '{"order": 9}')
        click("resolve-node")
        box("order.charge", "succeeded")
        click("cancel-graph")
        tab.wait_for_selector("h1 .badge.cancelled")

    with working(orders.app), served(orders.app) as url:
        browse(steps, viewport=DESKTOP, bypass_csp=True)
    assert {*finished[0]} == {one.name for one in GRAPH_ACTIONS}


def test_the_form_of_a_task_sends_what_was_typed(shop: Umbel) -> None:
    got: list[tuple[Any, ...]] = []

    @shop.task(name="shop.note")
    def note(text: str | None, number: int, share: float, several: list[Any]) -> None:
        got.append((text, number, share, several))

    def steps(tab: Any) -> None:
        operator = Operator(tab, url)
        operator.open("/tasks/shop.note")
        tab.fill("[data-argument=text]", "123")
        tab.fill("[data-argument=number]", "9007199254740993")
        tab.fill("[data-argument=share]", "1.0")
        tab.fill("[data-argument=several]", '[12345678901234567890, 1.0, "1.0"]')
        operator.click("publish", said="Published the job")
        until(lambda: got, "the job to run")

    with working(shop), served(shop) as url:
        browse(steps)
    assert repr(got) == repr([("123", 9007199254740993, 1.0, [12345678901234567890, 1.0, "1.0"])])


def test_rows_are_selected_with_a_key_and_retried_or_all_that_match(shop: Umbel) -> None:
    jobs = bury(shop, 5)

    def steps(tab: Any) -> None:
        operator = Operator(tab, url)
        operator.open("/jobs?state=buried&task=shop.charge")
        button = tab.locator("button:text-is('Retry selected')")
        assert button.is_disabled()
        for key in "jxjx":
            tab.keyboard.press(key)
        button.click()
        assert "the 2 jobs that you selected" in tab.inner_text("#question")
        with tab.expect_response("**/actions/retry-jobs") as answer:
            tab.click("dialog[open] button[value=yes]")
        assert answer.value.json() == {"done": "2 jobs are queued again."}
        tab.mouse.move(700, 5)
        tab.wait_for_selector("tbody:not(:has(tr:nth-child(4)))")  # by a live update
        tab.click("button:text-is('Retry all that match')")
        tab.wait_for_selector("#question:text-is('Queue 3 jobs again?')")
        with tab.expect_response("**/actions/retry-jobs") as answer:
            tab.click("dialog[open] button[value=yes]")
        assert answer.value.json() == {"done": "3 jobs are queued again."}
        operator.open("/jobs?state=queued")
        tab.click("button:text-is('Cancel all that match')")
        tab.wait_for_selector("#question:text-is('Cancel 5 jobs?')")
        with tab.expect_response("**/actions/cancel-jobs") as answer:
            tab.click("dialog[open] button[value=yes]")
        assert "5 jobs are cancelled" in answer.value.json()["done"]

    with served(shop) as url:
        browse(steps, viewport=DESKTOP)
    found = inquire(shop, lambda operations: operations.jobs(JobFilter(task="shop.charge")))
    assert {job.id for job in found if job.state is State.CANCELLED} == {*jobs}


def test_a_filter_is_saved_as_a_view_opened_and_deleted(shop: Umbel) -> None:
    bury(shop)
    finished: list[list[str]] = []

    def steps(tab: Any) -> None:
        operator = Operator(tab, url)
        finished.append(operator.done)
        operator.open("/jobs?state=buried&task=shop.charge")
        tab.click("summary:text-is('Saved views')")
        tab.wait_for_selector("#views >> text=No saved views")
        tab.fill("main input[name=name]", HOSTILE[:40])
        with tab.expect_response("**/actions/save-view") as answer:
            tab.keyboard.press("Enter")
        assert answer.value.status == 400  # control characters
        tab.fill("main input[name=name]", "<b>failing</b>")
        operator.click("save-view", said="Saved the view <b>failing</b>.")
        tab.wait_for_selector("#views a:has-text('<b>failing</b>')")
        assert tab.input_value("main input[name=name]") == ""
        operator.open("/jobs?state=queued")
        tab.click("summary:text-is('Saved views')")
        tab.wait_for_selector("#views a:has-text('<b>failing</b>')")
        tab.mouse.move(700, 5)
        shop.registry.find("shop.add").delay(1, 2)
        tab.wait_for_selector("tr[data-open]:has-text('shop.add')")  # by a live update
        if AXE.exists():
            tab.add_script_tag(path=str(AXE))
        check_page(tab, "/jobs with the menu of views")
        take_pictures(tab, "sqlite", "jobs-views")
        tab.click("#views a:has-text('<b>failing</b>')")
        tab.wait_for_url("**/jobs?state=buried&task=shop.charge")
        tab.click("summary:text-is('Saved views')")
        operator.click("remove-view", near="failing", said="Deleted the view")
        tab.wait_for_selector("#views >> text=No saved views")

    with served(shop) as url:
        browse(steps, viewport=DESKTOP, bypass_csp=True)
    assert {*finished[0]} == {one.name for one in VIEW_ACTIONS}


# --- live updates and keys -------------------------------------------------------------------


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
        tab.goto(f"{url}jobs?state=queued")
        tab.wait_for_selector("text=No jobs match")
        for number in range(2):  # the second one while the page has rows that can be selected
            other = shop.registry.find("shop.add").delay(number, 4)
            tab.wait_for_selector(f"tr[data-open='/jobs/{other.id}']")
            if not number:
                tab.keyboard.press("j")
        assert tab.get_attribute("tr.chosen", "data-open") != f"/jobs/{other.id}"

    with served(shop) as url:
        browse(steps)


def test_keys_lead_to_pages_and_change_the_theme(shop: Umbel) -> None:
    shop.registry.find("shop.add").delay(1, 2)

    def steps(tab: Any) -> None:
        tab.goto(url)
        tab.keyboard.press("g")
        tab.keyboard.press("q")
        tab.wait_for_url("**/queues")
        tab.keyboard.press("z")
        assert tab.inner_text("#zone") == "local"
        theme = tab.get_attribute("html", "data-theme")
        tab.keyboard.press("t")
        assert tab.get_attribute("html", "data-theme") != theme
        tab.keyboard.press("/")
        tab.keyboard.type("gq")
        assert tab.input_value("#search") == "gq"
        tab.goto(f"{url}jobs")
        tab.keyboard.press("j")
        tab.keyboard.press("Enter")
        tab.wait_for_url("**/jobs/*")
        tab.keyboard.press("?")
        tab.wait_for_selector("#help[open]")
        tab.set_viewport_size(PHONE)
        tab.goto(url)
        tab.click("#menu")
        tab.click("nav >> text=Workers")
        tab.wait_for_url("**/workers")

    with served(shop) as url:
        browse(steps)


def test_a_clock_of_the_browser_that_is_wrong_changes_no_age(shop: Umbel) -> None:
    [job] = bury(shop)

    def steps(tab: Any) -> None:
        tab.add_init_script(
            "const now = Date.now.bind(Date); Date.now = () => now() + 7 * 86400 * 1000;"
        )
        tab.goto(f"{url}jobs/{job}")
        tab.wait_for_selector("main time:has-text('ago')")
        ages = tab.locator("main time").all_inner_texts()
        assert all(re.fullmatch(r"(\d+ (s|min) ago|in 0 s)", age) for age in ages), ages

    with served(shop) as url:
        browse(steps)


def test_a_page_beyond_the_limit_says_that_it_is_updated_less_often(
    shop: Umbel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("umbel.dashboard.live.MAX_STREAMS_PER_USER", 1)

    def steps(tab: Any) -> None:
        other = tab.context.new_page()
        other.goto(f"{url}queues")
        other.wait_for_selector("#live:text('live')")
        tab.goto(f"{url}queues")
        tab.wait_for_selector("text=Too many pages are open")
        tab.wait_for_selector("#live:text('every 15 s')")

    with served(shop) as url:
        browse(steps)


def test_a_user_logs_in_and_is_led_to_the_login_again_when_removed(
    shop: Umbel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("umbel.dashboard.server._USER_CHECK_SECONDS", 0.0)
    ask(shop, lambda operations: operations.access.set_user("ann", "viewer", PASSWORD))

    def steps(tab: Any) -> None:
        tab.goto(f"{url}queues")
        tab.fill("input[name=name]", "ann")
        tab.fill("input[name=password]", PASSWORD)
        tab.click("button:text-is('Log in')")
        tab.wait_for_selector("#live:text('live')")
        inquire(shop, lambda operations: operations.access.remove_user("ann"))
        inquire(shop, lambda operations: operations.pause("queue", "mail", "a change"))
        tab.wait_for_selector("input[name=password]")
        assert "/login?next=" in tab.url

    with served(shop, login=True) as url:
        browse(steps)


# --- pictures for the documentation ----------------------------------------------------------


REFUND = """
@app.task(name="shop.refund", retry=Retry(0))
def refund(order):
    raise ConnectionError("the bank did not answer")
"""


@contextmanager
def busy_shop(app: Umbel) -> Iterator[None]:
    """Fill the last 15 minutes of the charts, and run and bury a few jobs."""

    @app.task(name="shop.send_receipt")
    def send_receipt(order: int) -> None: ...

    @app.task(name="mail.newsletter", queue="mail")
    def newsletter(customer: int) -> None: ...

    # A traceback shows where the code is; here that is no folder of this machine.
    code: dict[str, Any] = {"app": app, "Retry": Retry}
    exec(compile(REFUND, "shop.py", "exec"), code)  # noqa: S102 - a text of this file
    refund = code["refund"]

    async def fill(operations: Operations) -> None:
        coordination = operations.audit._coordination
        now = (await coordination.read("audit/")).now
        puts = []
        for back in range(90):
            wave = math.sin(back / 9) + 2
            spike = 40 if 20 < back < 28 else 0
            runs = tuple(int(wave * 4) if 0.05 <= bound <= 0.5 else 0 for bound in BOUNDS)
            tasks = {
                "shop.send_receipt": TaskCounts(int(60 * wave), 0, 0, 0, runs),
                "shop.charge": TaskCounts(int(20 * wave), 3 * spike + 4, spike // 2, 0, runs),
            }
            depths = DepthSums(
                1, int(9 * wave + 6 * spike), int(6 * wave), int(12 * wave), int(4 * wave + spike)
            )
            waits = tuple(int(9 * wave) if 0.01 <= bound <= 2 else 0 for bound in BOUNDS)
            puts.append(
                Put(TEN_SECONDS.key(now - 10 * back), encode(Counters(tasks, depths, waits)), 900)
            )
        for start in range(0, len(puts), 30):
            await coordination.commit({}, puts[start : start + 30])

    fulfil = declare_fulfilment(app, send_receipt)
    ask(app, fill)
    handles = [refund.delay(order) for order in range(12)]
    with working(app, queues=("default",), name="web-1"):
        until(lambda: all(h.state is State.BURIED for h in handles), "the jobs to be buried")
        for customer in range(40):
            newsletter.delay(customer)
        for order in range(30):
            send_receipt.options(delay=3600).delay(order)
        fulfil.options(id=RUN).delay(4711)
        until(lambda: app.handle(RUN).progress[0] == 4, "the run to wait for its signal")
        yield


def test_the_pictures_in_the_documentation_are_made_from_the_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shop = declare(Umbel("sqlite:///shop.db", namespace="shop"))
    target = ASSETS if os.environ.get("UMBEL_WRITE_PICTURES") else tmp_path

    def steps(tab: Any) -> None:
        tab.goto(url)
        tab.wait_for_selector("text=No worker serves the queue mail")
        tab.wait_for_selector("main time:has-text('ago')")
        tab.screenshot(path=str(target / "dashboard.png"))
        take_pictures(tab, "busy", "overview")
        ticks = tab.locator(".chart >> nth=1 >> .tick").all_text_contents()
        assert {"100 ms", "1 s"} <= {*ticks}
        left = "one.getBoundingClientRect().left < one.closest('svg').getBoundingClientRect().left"
        cut = f"[...document.querySelectorAll('.tick')].filter(one => {left}).length"
        assert tab.evaluate(cut) == 0
        tab.click(".chart summary >> nth=1")
        assert "min ago" in tab.inner_text(".chart table >> nth=1")
        assert "p95" in tab.text_content(".chart .hit title >> nth=31")
        take_pictures(tab, "busy", "numbers")
        tab.goto(f"{url}jobs?state=buried")
        tab.click("td .id")
        tab.wait_for_selector("text=Traceback")
        tab.screenshot(path=str(target / "dashboard-job.png"))
        tab.goto(f"{url}graphs/{RUN}")
        tab.wait_for_selector("text=The signal approved is expected")
        tab.screenshot(path=str(target / "dashboard-graph.png"))

    with busy_shop(shop), served(shop) as url:
        browse(steps, viewport={"width": 1200, "height": 760}, color_scheme="light")
    for name in ("dashboard.png", "dashboard-job.png", "dashboard-graph.png"):
        assert (target / name).stat().st_size > 10_000
        assert (ASSETS / name).stat().st_size < 150_000
