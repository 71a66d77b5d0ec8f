"""``app.batch()``: jobs that are collected as they are published."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from integration.conftest import working
from integration.running import ask
from umbel import NodeFailed, Umbel, Unique, chain, group
from umbel.backends import JobFilter
from umbel.errors import ConfigurationError, DuplicateJob, JobFailed
from umbel.messages import State, fresh_id


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


def test_a_job_that_exists_becomes_a_part_and_those_published_with_it_are_not_lost(
    app: Umbel,
) -> None:
    declare(app)
    double, earlier = app.registry.find("double"), fresh_id()
    with working(app):
        double.options(id=earlier).delay(1)
        with app.batch() as batch:
            app.publish_many([double.options(id=earlier).s(1), double.s(2), double.s(3)])
            double.options(id=earlier).delay(1)
        assert batch.handle.get(timeout=30) == [2, 4, 6, 2]


def test_the_holder_of_a_unique_key_becomes_a_part_or_the_call_raises(app: Umbel) -> None:
    declare(app)
    double = app.registry.find("double")
    holder = double.options(unique="one").delay(1)
    with app.batch() as batch:
        same = double.options(unique=Unique("one", on_conflict="return")).delay(2)
        assert same.id == holder.id
        with pytest.raises(DuplicateJob):
            double.options(unique="one").delay(3)
        double.delay(4)
    with working(app):
        assert batch.handle.get(timeout=30) == [2, 8]


def test_a_canvas_is_one_part_of_a_batch(app: Umbel) -> None:
    declare(app)
    double, total = app.registry.find("double"), app.registry.find("total")
    with working(app):
        with app.batch() as batch:
            double.delay(1)
            (group(double.s(1), double.s(2)) | total.s()).delay()
            app.publish_many([double.s(5), group(double.s(1), double.s(2))])
        assert batch.handle.get(timeout=30) == [2, 6, 10, [2, 4]]
        with app.batch() as failed:
            (app.registry.find("fail").si() | double.si(1)).delay()
        with pytest.raises(ValueError, match="not this one"):
            failed.handle.get(timeout=30)


def test_a_canvas_of_async_code_is_a_part_of_a_batch(app: Umbel) -> None:
    declare(app)
    double = app.registry.find("double")

    async def publish() -> list[Any]:
        async with app.batch() as batch:
            await chain(double.s(1), double.s()).adelay()
        return await batch.handle.aget(timeout=30)

    with working(app):
        assert asyncio.run(publish()) == [4]


def test_a_batch_refuses_a_connection(app: Umbel) -> None:
    declare(app)
    double = app.registry.find("double")
    with app.batch() as batch:
        for call in (double.s(1), chain(double.s(1), double.s())):
            with pytest.raises(ConfigurationError, match="connection: not in the block"):
                call.options(connection=object()).delay()
    with working(app):
        assert batch.handle.get(timeout=30) == []
