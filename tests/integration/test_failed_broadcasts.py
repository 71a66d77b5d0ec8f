"""A broadcast counts as succeeded only if its task failed on no worker."""

from __future__ import annotations

import pickle

import pytest

from integration.conftest import Place, working
from integration.running import DEADLINE
from umbel import State, Umbel, current
from umbel.cli.job_details import failure_text
from umbel.errors import BroadcastFailed


def failing_on(app: Umbel, *workers: str) -> None:
    @app.task(name="clean", broadcast=True, retry=0)
    async def clean() -> str:
        if current.worker.name in workers:
            raise ValueError(f"no luck on {current.worker.name}")
        return "clean"


def test_a_broadcast_that_failed_on_a_worker_is_buried_and_names_the_worker(place: Place) -> None:
    app = place.app()
    failing_on(app, "bob")
    clean = app.registry.find("clean")
    with working(app, name="anna"), working(app, name="bob"), working(app, name="carl"):
        handle = clean.delay()
        with pytest.raises(BroadcastFailed) as raised:
            handle.get(timeout=DEADLINE)
    assert raised.value.failed == {"bob": "ValueError: no luck on bob"}
    assert str(raised.value) == "failed on 1 of 3 workers: bob: ValueError: no luck on bob"
    record = handle.record()
    assert record.state is State.BURIED
    assert [attempt.ended for attempt in record.attempts] == ["failed"], "it is not retried"
    assert "failed on 1 of 3 workers: bob: ValueError: no luck on bob" in failure_text(record)
    parts = [job for job in place.jobs() if job.id != handle.id]
    assert sorted(job.state.value for job in parts) == ["buried", "succeeded", "succeeded"]


def test_a_broadcast_that_failed_on_no_worker_has_all_results(place: Place) -> None:
    app = place.app()
    failing_on(app)
    clean = app.registry.find("clean")
    with working(app, name="anna"), working(app, name="bob"):
        found = clean.delay().get(timeout=DEADLINE)
    assert {name: one.result for name, one in found.items()} == {"anna": "clean", "bob": "clean"}


def test_the_error_survives_a_copy() -> None:
    error = BroadcastFailed({"bob": "ValueError: no"}, 3)
    copied = pickle.loads(pickle.dumps(error))
    assert (copied.failed, copied.workers, str(copied)) == (error.failed, 3, str(error))
