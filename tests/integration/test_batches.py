"""``app.batch()``: jobs that are collected as they are published."""

from __future__ import annotations

import asyncio

import pytest

from integration.conftest import working
from integration.running import ask
from umbel import NodeFailed, Umbel, chain
from umbel.backends import JobFilter
from umbel.errors import ConfigurationError, JobFailed
from umbel.messages import State


def declare(app: Umbel) -> None:
    @app.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    @app.task(name="fail", retry=0)
    def fail() -> None:
        raise ValueError("not this one")

    @app.task(name="total")
    def total(numbers: list[int]) -> int:
        return sum(numbers)


def test_a_batch_has_the_results_in_the_order_of_publishing(app: Umbel) -> None:
    declare(app)
    double, total = app.registry.find("double"), app.registry.find("total")
    with working(app):
        with app.batch() as batch:
            handles = [double.delay(number) for number in range(4)]
        assert batch.handle.get(timeout=30) == [0, 2, 4, 6]
        assert [handle.get(timeout=30) for handle in handles] == [0, 2, 4, 6]
        assert chain(batch.handle, total.s()).delay().get(timeout=30) == 12


def test_jobs_of_a_batch_start_before_it_is_complete(app: Umbel) -> None:
    declare(app)
    double = app.registry.find("double")
    with working(app), app.batch() as batch:
        assert double.delay(1).get(timeout=30) == 2
        assert batch.handle.state is State.BLOCKED


def test_a_batch_that_is_left_by_an_exception_has_failed_and_its_jobs_go_on(app: Umbel) -> None:
    declare(app)
    double = app.registry.find("double")
    batch = app.batch()

    def publish() -> None:
        with batch:
            double.delay(1)
            raise KeyError("row 7")

    with pytest.raises(KeyError):
        publish()
    (job,) = ask(app, lambda operations: operations.jobs(JobFilter(task="double")))
    with working(app):
        assert app.handle(job.id).get(timeout=30) == 2
    with pytest.raises(JobFailed, match="the block of the batch was left: 'row 7'"):
        batch.handle.get(timeout=30)


def test_a_failed_job_fails_its_batch_or_has_a_place_in_the_list(app: Umbel) -> None:
    declare(app)
    double, fail = app.registry.find("double"), app.registry.find("fail")
    with working(app):
        with app.batch() as batch:
            double.delay(1)
            fail.delay()
        with pytest.raises(ValueError, match="not this one"):
            batch.handle.get(timeout=30)
        with app.batch(errors="collect") as batch:
            double.delay(1)
            fail.delay()
        good, failed = batch.handle.get(timeout=30)
    assert good == 2
    assert isinstance(failed, NodeFailed)
    assert failed.node == "1 fail"


def test_a_batch_of_async_code_collects_what_its_block_publishes(app: Umbel) -> None:
    declare(app)
    double = app.registry.find("double")

    async def publish() -> list[int]:
        async with app.batch() as batch:
            await double.adelay(3)
            await app.apublish_many([double.s(4), double.s(5)])
        return await batch.handle.aget(timeout=30)

    with working(app):
        assert asyncio.run(publish()) == [6, 8, 10]


def test_an_empty_batch_gives_an_empty_list(app: Umbel) -> None:
    declare(app)
    with working(app):
        with app.batch() as batch:
            pass
        assert batch.handle.get(timeout=30) == []


def test_a_batch_refuses_a_policy_that_it_cannot_keep(app: Umbel) -> None:
    with pytest.raises(ConfigurationError, match='errors="cancel" of a batch'):
        app.batch(errors="cancel")
