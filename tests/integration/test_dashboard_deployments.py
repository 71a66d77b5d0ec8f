"""Deployments on the dashboard: one whose command no longer runs is taken over."""

from __future__ import annotations

from typing import Any

from integration.browsing import Browser, served
from integration.conftest import working
from integration.running import Signal, ask, until
from umbel import Umbel
from umbel.control import DeploymentPlan
from umbel.messages import State, fresh_id
from umbel.operations import Operations


async def begin(operations: Operations) -> None:
    plan = DeploymentPlan(
        id=fresh_id(), who="ann", host="web", pid=1, reason="release 7", queues=("default",)
    )
    await operations.deploy.begin(plan)


async def begin_and_wait(operations: Operations) -> None:
    await begin(operations)
    found = (await operations.deploy.status()).deployment
    assert found is not None
    await operations.deploy.wait(found, interval=1, limit=30, show=lambda view: None)


def deployment_of(browser: Browser) -> dict[str, Any]:
    page: dict[str, Any] = browser.get("/api/v1/deployments").json()
    return page["deployment"] | {"has_no_command": page["has_no_command"]}


def test_a_deployment_that_is_go_is_taken_over_without_a_gap(app: Umbel) -> None:
    with working(app, queues=("default",)), served(app) as url:
        browser = Browser(url)
        ask(app, begin_and_wait)
        waiting = app.registry.find("shop.add").delay(1, 2)
        seen = deployment_of(browser)
        assert (seen["state"], seen["has_no_command"]) == ("go", True)
        assert "take-over-deployment" in browser.get("/deployments").text
        take = {"deployment": seen["id"], "confirm": "ann"}
        answer = browser.act("take-over-deployment", **take | {"confirm": "anne"})
        assert answer.json()["error"] == "confirm: type the name ann"
        answer = browser.act("take-over-deployment", **take)
        assert answer.json() == {
            "done": "You have taken over the deployment of ann; workers can be stopped now."
        }
        taken = deployment_of(browser)
        assert (taken["who"], taken["state"], taken["reason"]) == ("local", "go", "release 7")
        assert taken["queues"] == ["default"]
        assert taken["id"] != seen["id"]
        assert waiting.state is State.QUEUED
        again = browser.act("take-over-deployment", **take)  # of a page that is out of date
        assert again.status_code == 409
        assert deployment_of(browser)["id"] == taken["id"]
        assert browser.act("end-deployment").status_code == 200
        until(lambda: waiting.state is State.SUCCEEDED, "the job")
        lines = browser.get("/api/v1/audit").json()["lines"]
        done = [line for line in lines if line["outcome"].startswith("You have taken over")]
        assert [line["subject"] for line in done] == [seen["id"]]


def test_a_deployment_whose_command_runs_is_not_taken_over(shop: Umbel) -> None:
    running, go = Signal(), Signal()

    @shop.task(name="shop.hold")
    async def hold() -> None:
        running.set()
        await go.seen()

    with working(shop, queues=("default",)), served(shop) as url:
        browser = Browser(url)
        shop.registry.find("shop.hold").delay()
        try:
            running.wait()
            ask(shop, begin)
            seen = deployment_of(browser)
            assert not seen["has_no_command"]
            assert "take-over-deployment" not in browser.get("/deployments").text
            take = {"deployment": seen["id"], "confirm": "ann", "limit": "1"}
            refused = browser.act("take-over-deployment", **take)
            assert refused.status_code == 409
            assert "(process 1 on web) still runs" in refused.json()["error"]
            # Nothing renews it, as after the command was killed.
            until(lambda: deployment_of(browser)["has_no_command"], "the silence")
            browser.http.timeout = 60
            answer = browser.act("take-over-deployment", **take)
            assert "was not ready within 1 s: it has ended" in answer.json()["done"]
            ended = deployment_of(browser)
            assert (ended["who"], ended["state"]) == ("local", "aborted")
            assert not ended["has_no_command"]
        finally:
            go.set()
