"""Commands to one worker: it answers, stops, pauses and reloads, and rejects untrusted senders."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from integration.conftest import Place, working
from integration.running import DEADLINE, Signal, until
from umbel import Umbel, WorkerOptions, current
from umbel.errors import ConfigurationError, JobCancelled, JobFailed, UnknownWorker
from umbel.keys import Keyring
from umbel.telemetry import events


def test_a_worker_reports_its_health(place: Place) -> None:
    app, began, end = place.app(), Signal(), Signal()

    @app.task
    def work() -> None:
        began.set()
        end.wait()

    with working(app, name="anna", io=5, cpu=2):
        job = work.delay()
        began.wait()
        found = app.inbox.health.options(worker="anna").delay().get(timeout=DEADLINE)
        end.set()
        job.get(timeout=DEADLINE)
    assert (found.worker, found.index, found.free_cpu, found.stopping) == ("anna", 0, 1, False)
    assert [(one.id, one.task) for one in found.jobs] == [(job.id, work.name)]
    assert found.memory > 1_000_000


def test_a_job_is_stopped_where_it_runs(place: Place) -> None:
    app, began = place.app(), Signal()

    @app.task
    async def work() -> None:
        began.set()
        await asyncio.sleep(3600)

    # A heart that beats so rarely that nothing else can have told the worker.
    with working(app, lease=3600):
        job = work.delay()
        began.wait()
        stop = app.inbox.cancel.options(worker=0)
        assert stop.delay(job.id, "not today").get(timeout=DEADLINE) is True
        with pytest.raises(JobCancelled, match="not today"):
            job.get(timeout=DEADLINE)
        assert stop.delay(job.id).get(timeout=DEADLINE) is False


def test_a_paused_worker_starts_nothing_until_it_is_resumed(place: Place) -> None:
    app = place.app()

    @app.task
    async def work() -> None: ...

    with working(app, name="anna"):
        app.inbox.pause.options(worker=0).delay("a look at the disk").get(timeout=DEADLINE)
        until(lambda: place.ask(lambda o: o.workers())[0].state == "paused", "it to have paused")
        (pause,) = place.ask(lambda o: o.pauses())
        assert (pause.scope, pause.name, pause.reason) == ("worker", "anna", "a look at the disk")
        job = work.delay()
        place.ask(lambda o: o.resume("worker", "anna"))
        job.get(timeout=DEADLINE)


def test_a_worker_that_reloads_finishes_its_running_tasks(place: Place) -> None:
    app, began, end = place.app(), Signal(), Signal()

    @app.task
    def work() -> int:
        began.set()
        end.wait()
        return 42

    with working(app) as worker:
        job = work.delay()
        began.wait()
        app.inbox.reload.options(worker=0).delay().get(timeout=DEADLINE)
        assert (worker.reloading, worker.stopping()) == (True, True)
        end.set()
        assert job.get(timeout=DEADLINE) == 42


def test_a_command_elsewhere_than_in_a_workers_own_queue_is_refused(place: Place) -> None:
    app = place.app()
    with working(app), pytest.raises(JobFailed, match=r"options\(worker=...\)"):
        app.inbox.reload.delay().get(timeout=DEADLINE)


@pytest.mark.parametrize("guarded", [True, False])
def test_no_command_comes_by_a_route(place: Place, tmp_path: Path, guarded: bool) -> None:
    app, stranger = place.app(keys=keys_in(tmp_path) if guarded else None), place.app()

    @app.task(affinity="plan")
    async def work(plan: str) -> str:
        return plan

    with working(app) as worker:
        assert work.delay("seven").get(timeout=DEADLINE) == "seven"
        command = stranger.inbox.reload.options(affinity="seven").delay()
        is_verified = guarded or place.kind == "sqlite"  # there, the user has a key
        with pytest.raises(
            JobFailed, match="not signed" if is_verified else r"options\(worker=...\)"
        ):
            command.get(timeout=DEADLINE)
        assert not worker.stopping()


def test_a_second_reload_request_reloads_and_a_stop_request_stops(place: Place) -> None:
    app = place.app()
    worker = app.worker(WorkerOptions())
    worker.reload()
    worker.reload()
    assert worker.reloading
    worker.stop()
    assert (worker.reloading, worker.stopping()) == (False, True)
    worker.reload()
    assert not worker.reloading


def test_a_message_that_cannot_start_leaves_its_place_to_the_next(
    place: Place, tmp_path: Path
) -> None:
    keys = keys_in(tmp_path)
    app, other = place.app(keys=keys), place.app(keys=keys)

    @app.task
    async def work() -> int:
        return 42

    @other.task(name="nobody knows it")
    async def unknown() -> None: ...

    with working(app, io=1, cpu=0, lease=3600):
        for _ in range(3):
            with pytest.raises(JobFailed, match="no task 'nobody knows it'"):
                unknown.options(worker=0).delay().get(timeout=DEADLINE)
            assert work.delay().get(timeout=DEADLINE) == 42


def test_a_call_goes_to_the_worker_that_is_named(place: Place) -> None:
    app = place.app()

    @app.task
    async def where() -> str:
        return current.worker.name

    async def both() -> str:
        handle = await where.options(worker="bob").adelay()
        return await handle.aget(timeout=DEADLINE)

    with working(app, name="anna"), working(app, name="bob"):
        assert where.options(worker="bob").delay().get(timeout=DEADLINE) == "bob"
        assert where.options(worker="anna").delay().get(timeout=DEADLINE) == "anna"
        assert asyncio.run(both()) == "bob"
        with pytest.raises(UnknownWorker, match="no worker is called 'eve'; running: anna, bob"):
            where.options(worker="eve").delay()


# --- whom it hears ---------------------------------------------------------------------------


def heard(app: Umbel) -> list[events.Event]:
    """Return the events of an application's worker about its inbox."""
    found: list[events.Event] = []
    about = events.InboxUnsigned | events.InboxClosed | events.InboxRefused | events.SigningOff
    app.telemetry.subscribe(lambda e: found.append(e) if isinstance(e, about) else None)
    return found


def keys_in(folder: Path, name: str = "keys") -> str:
    path = folder / name
    Keyring().with_new(datetime(2026, 1, 31, tzinfo=UTC)).write(path)
    return str(path)


def test_a_closed_inbox_refuses_everything_but_what_came_by_a_route(place: Place) -> None:
    app = place.app()
    said = heard(app)

    @app.task(affinity="plan")
    async def work(plan: str) -> str:
        return plan

    with working(app, inbox=False):
        assert work.delay("seven").get(timeout=DEADLINE) == "seven"
        with pytest.raises(JobFailed, match="accepts no messages to itself"):
            work.options(worker=0).delay("seven").get(timeout=DEADLINE)
    assert [type(one) for one in said] == [events.InboxClosed, events.InboxRefused]


def test_with_keys_a_route_needs_no_signature_and_a_broadcast_has_one(
    place: Place, tmp_path: Path
) -> None:
    app = place.app(keys=keys_in(tmp_path))
    said = heard(app)

    @app.task(affinity="plan")
    async def work(plan: str) -> str:
        return plan

    @app.task(broadcast=True)
    async def clean() -> str:
        return current.worker.name

    with working(app, name="anna"), working(app, name="bob"):
        assert work.delay("seven").get(timeout=DEADLINE) == "seven"
        assert {*clean.delay().get(timeout=DEADLINE)} == {"anna", "bob"}
    assert said == []


@pytest.mark.parametrize("signing", [True, False])
def test_messages_of_a_sender_without_keys_are_accepted_only_if_signing_is_off(
    place: Place, tmp_path: Path, signing: bool
) -> None:
    app, stranger = place.app(keys=keys_in(tmp_path)), place.app()
    said = heard(app)

    @app.task(name="work")
    async def work() -> int:
        return 42

    job = stranger.inbox.health.options(worker=0)
    with working(app, signing=signing):
        if signing:
            # On SQLite, the sender signs with the user's key.
            why = "not trusted here" if place.kind == "sqlite" else "it is not signed"
            with pytest.raises(JobFailed, match=f"{why}; give its publisher and this worker"):
                job.delay().get(timeout=DEADLINE)
        else:
            assert job.delay().get(timeout=DEADLINE).index == 0
    assert [type(one) for one in said] == [events.InboxRefused if signing else events.SigningOff]


def test_a_new_key_is_taken_up_by_a_worker_that_runs(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("umbel.keys.keyring._CHECK_INTERVAL", 0.0)
    keys = keys_in(tmp_path)
    app = place.app(keys=keys)
    with working(app):
        ask = app.inbox.health.options(worker=0)
        assert ask.delay().get(timeout=DEADLINE).index == 0
        Keyring().with_new(datetime(2026, 1, 31, tzinfo=UTC)).write(Path(keys))
        assert ask.delay().get(timeout=DEADLINE).index == 0


def test_without_a_private_key_nothing_is_sent_to_one_worker(place: Place, tmp_path: Path) -> None:
    keys = Path(keys_in(tmp_path))
    Keyring.read(keys).public_only().write(tmp_path / "public")
    app = place.app(keys=str(tmp_path / "public"))
    with pytest.raises(ConfigurationError, match="none of them can sign for worker-0"):
        app.inbox.health.options(worker=0).delay()
    assert place.jobs() == []


def test_a_worker_does_not_start_with_keys_that_cannot_be_read(
    place: Place, tmp_path: Path
) -> None:
    app = place.app(keys=str(tmp_path / "nothing"))
    worker = app.worker(WorkerOptions())
    with pytest.raises(ConfigurationError, match=r"nothing.*umbel keys make"):
        asyncio.run(worker.run())
    assert place.ask(lambda o: o.workers()) == []


def test_a_shared_server_without_signing_causes_a_warning(sqlite: Place, postgres: Place) -> None:
    for place, warned in ((sqlite, []), (postgres, [events.InboxUnsigned])):
        app = place.app()
        said = heard(app)
        with working(app):
            pass
        assert [type(one) for one in said] == warned
