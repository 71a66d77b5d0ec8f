"""Actions on the dashboard: what the audit log says of them, and requests that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from integration.browsing import Browser, bury, served
from integration.conftest import working
from integration.running import ask, until
from umbel import Umbel, chain
from umbel.backends import JobFilter
from umbel.backends.redis.records import RedisRecords
from umbel.backends.sql.records import SqlRecords
from umbel.control import AuditLine
from umbel.dashboard.action_requests import MAX_BULK_JOBS
from umbel.errors import NotAllowed
from umbel.messages import State
from umbel.operations import Operations
from umbel.operations.recording import record_changes


def newest(app: Umbel) -> AuditLine:
    """Return the last line of the audit log."""
    return ask(app, lambda operations: operations.audit.read())[0][0]


# --- the audit log ---------------------------------------------------------------------------


def test_an_action_that_changes_no_job_is_recorded_as_refused(app: Umbel) -> None:
    [job] = bury(app)
    add = app.registry.find("shop.add")
    waiting = add.delay(1, 2).id
    ask(app, lambda operations: operations.pause("queue", "mail", ""))
    with served(app) as url:
        browser = Browser(url)
        refused: list[tuple[str, dict[str, str], str]] = [
            ("retry-jobs", {"jobs": f"{waiting} none"}, f"{waiting} none"),
            ("cancel-jobs", {"jobs": job}, job),
            ("move", {"name": "mail", "target": "default"}, "mail default"),
            ("purge", {"name": "mail", "confirm": "mail"}, "mail"),
            ("resume", {"scope": "queue", "name": "default"}, "queue default"),
            ("retry", {"job": waiting}, waiting),
        ]
        for action, fields, subject in refused:
            answer = browser.act(action, **fields)
            assert answer.status_code == 409, action
            line = newest(app)
            assert (line.action, line.subject) == (action, subject)
            assert line.outcome == f"refused: {answer.json()['error']}"


def test_an_action_on_a_schedule_that_changes_nothing_is_recorded_as_refused(shop: Umbel) -> None:
    with working(shop), served(shop) as url:
        browser = Browser(url)
        until(lambda: browser.get("/api/v1/schedules").json()["schedules"], "the schedule")
        for action in ("resume-schedule", "reset-schedule"):
            assert browser.act(action, schedule="shop.add").status_code == 409
            assert newest(shop).outcome.startswith("refused: The schedule ")


def test_the_audit_log_names_what_was_acted_on(app: Umbel) -> None:
    jobs = bury(app, 2)
    with served(app) as url:
        browser = Browser(url)
        actions: list[tuple[str, dict[str, str], str]] = [
            ("pause", {"scope": "task", "name": "shop.add"}, "task shop.add"),
            ("pause", {"scope": "all"}, "all"),
            ("retry-jobs", {"jobs": jobs[0]}, jobs[0]),
            (
                "retry-jobs",
                {"state": "buried", "task": "shop.charge", "count": "1"},
                "state=buried task=shop.charge",
            ),
            ("cancel-jobs", {"jobs": " ".join(jobs)}, " ".join(jobs)),
        ]
        for action, fields, subject in actions:
            assert browser.act(action, **fields).status_code == 200
            assert newest(app).subject == subject
        # The user whose change was faster is named, although it was one of many jobs.
        answer = browser.act("cancel", job=jobs[1], seen="queued")
        assert "cancel-jobs by local" in answer.json()["error"]


def test_a_command_that_changes_nothing_is_not_recorded_as_done(app: Umbel) -> None:
    [buried] = bury(app)
    queued = app.registry.find("shop.add").delay(1, 2).id

    async def change(operations: Operations) -> None:
        record_changes(operations, "ann", "cli")
        await operations.cancel([buried], "")
        await operations.cancel_possible([buried], "")
        await operations.retry_possible([queued, "none"])
        await operations.forget_possible([queued])
        await operations.purge("mail")
        await operations.move("mail", "default")
        await operations.resume("queue", "mail")
        await operations.release("user-1", "")
        await operations.access.remove_token("ci")
        await operations.deploy.end("ann")
        with pytest.raises(NotAllowed, match="1 were queued again"):
            await operations.retry([buried, queued])

    ask(app, change)
    lines, _ = ask(app, lambda operations: operations.audit.read())
    assert len(lines) == 11
    done = {line.action: line.outcome for line in lines if line.outcome[:8] != "refused:"}
    assert len(done) == 9
    assert {*done.values()} == {"nothing was changed"}, done


# --- requests --------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [{}, {"content-type": "text/plain"}])
def test_a_request_without_a_body_has_no_fields(shop: Umbel, headers: dict[str, str]) -> None:
    with served(shop) as url:
        browser = Browser(url)
        headers = {"origin": browser.origin, "x-csrf": browser.token, **headers}

        def post(action: str, **more: Any) -> Any:
            return browser.http.post(f"api/v1/actions/{action}", headers=headers, **more)

        answer = post("retry")
        assert answer.status_code == 400
        assert answer.json()["error"] == "job: it is missing; give a value"
        assert post("end-deployment").json()["error"] == "No deployment is in progress."
        answer = post("retry", content="job=1")
        assert answer.status_code == 415
        assert "Content-Type" in answer.json()["error"]


def test_more_jobs_than_one_action_changes_are_refused(shop: Umbel) -> None:
    job = shop.registry.find("shop.add").delay(1, 2).id
    with served(shop) as url:
        jobs = " ".join([job, *map(str, range(MAX_BULK_JOBS))])
        answer = Browser(url).act("cancel-jobs", jobs=jobs)
        assert answer.status_code == 400
        expected = "jobs: 10,001 ids; give at most 10,000, and the others in further requests"
        assert answer.json()["error"] == expected
    assert not shop.handle(job).state.finished


def test_jobs_that_are_cancelled_together_are_read_together(
    app: Umbel, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = app.registry.find("shop.add")
    jobs = app.publish_many([add.s(1, number) for number in range(20)])
    run = chain(add.s(1, 2), add.s(3)).delay()
    found: list[str] = []
    with served(app) as url:
        browser = Browser(url)
        for kind in (SqlRecords, RedisRecords):
            find = kind.find

            async def note(self: Any, job: str, find: Any = find) -> Any:
                found.append(job)
                return await find(self, job)

            monkeypatch.setattr(kind, "find", note)
        answer = browser.act("cancel-jobs", jobs=" ".join(one.id for one in (*jobs, run)))
        assert answer.json() == {"done": "21 jobs are cancelled or were asked to stop."}
    assert not {one.id for one in jobs} & {*found}
    states = [one.state for one in ask(app, lambda o: o.jobs(JobFilter()))]
    assert states == [State.CANCELLED] * 23  # with the nodes of the graph


def test_numbers_that_are_not_finite_are_refused(shop: Umbel) -> None:
    with served(shop) as url:
        browser = Browser(url)
        for field in ("delay", "priority"):
            for text in ("nan", "inf", "1e400"):
                fields = {"task": "shop.add", "arguments": "[]", field: text}
                answer = browser.act("publish", **fields)
                assert answer.status_code == 400
                assert answer.json()["error"].startswith(f"{field}='{text}'")


# --- schedules -------------------------------------------------------------------------------


def test_a_changed_schedule_keeps_what_was_not_edited(shop: Umbel) -> None:
    shop.schedule("shop.tick", shop.registry.find("shop.count").s(1), every=3600, phase=1000)

    @shop.task(name="shop.report", cron="0 3 * * *", zone="Europe/Vienna")
    def report() -> None: ...

    with working(shop), served(shop) as url:
        browser = Browser(url)

        def edit(name: str, **fields: str) -> str:
            answer = browser.act("edit-schedule", schedule=name, **fields)
            assert answer.status_code == 200, answer.text
            return str(browser.get(f"/api/v1/schedules/{name}").json()["rule"])

        until(lambda: browser.get("/api/v1/schedules/shop.tick").is_success, "the schedule")
        assert edit("shop.tick", every="7200") == "every 7200 s + 1000 s"
        # The same seconds after the full interval, as far as it is that long.
        assert edit("shop.tick", every="600") == "every 600 s + 400 s"
        assert edit("shop.report", cron="0 4 * * *") == "0 4 * * * Europe/Vienna"
        assert edit("shop.report", zone="Asia/Tokyo") == "0 4 * * * Asia/Tokyo"
        assert edit("shop.report", cron="0 5 * * *", zone="UTC") == "0 5 * * * UTC"
        for fields in ({}, {"cron": "0 3 * * *", "every": "60"}):
            answer = browser.act("edit-schedule", schedule="shop.tick", **fields)
            assert answer.status_code == 400
