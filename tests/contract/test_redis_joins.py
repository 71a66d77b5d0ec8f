"""Joins and entries on Redis: large groups in portions, one slot, and which keys remain."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("redis")

from redis.crc import key_slot
from redis_adapters import run_on_redis

from umbel.backends import Put
from umbel.backends.joins import MAX_PUBLICATION
from umbel.backends.redis.scripts import root_of
from umbel.errors import ConfigurationError
from umbel.messages import Failed, Publication, State, Succeeded
from umbel.testing import Adapters
from umbel.testing.actions import FAILURE, FAR, RESULT, envelope, publish_and_settle, register
from umbel.testing.stores.graphs import Graph, OneWorker, advance, state

MORE_THAN_A_PORTION = 1_200


def keys_of(redis_client: Any, namespace: str) -> set[str]:
    """Return the keys of a namespace, without its root."""
    root = root_of(namespace)
    found = redis_client.scan_iter(match=f"{root}*", count=1000)
    return {key.decode().removeprefix(f"{root}:") for key in found}


async def large_group(b: Adapters) -> Graph:
    """Add a group with more jobs than a script changes, and cancel them."""
    g = Graph(b)
    g.join(*g.jobs(MORE_THAN_A_PORTION))
    await g.add()
    assert await b.broker.purge("default") == MORE_THAN_A_PORTION
    return g


def test_every_key_of_joins_and_entries_is_in_one_slot_of_a_cluster(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        g = Graph(b, "a {group}")
        g.job(after=g.join(g.job(expires=b.clock.now() + FAR), held=True), queue="a {queue}")
        await g.add()
        await b.coordination.commit({}, [Put("{section}/{name}", b"x", FAR)])

    run_on_redis(redis_namespace, scenario)
    root = root_of(redis_namespace)
    keys = keys_of(redis_client, redis_namespace)
    kinds = {key.partition(":")[0] for key in keys}
    joins = {"join", "parts", "part", "waits", "blocked_by", "blocked", "group", "held_joins"}
    assert joins | {"expiring", "entries", "entry_leases"} <= kinds
    assert {key_slot(f"{root}:{key}".encode()) for key in keys} == {key_slot(root.encode())}


def test_nothing_of_a_dropped_group_is_left_behind(redis_namespace: str, redis_client: Any) -> None:
    async def scenario(b: Adapters) -> None:
        before = keys_of(redis_client, redis_namespace)
        g = Graph(b)
        part = g.job(expires=b.clock.now() + FAR)
        doomed = g.job(after=g.join(part, fire="success"), expires_in=FAR)
        g.job(after=g.join(doomed, held=True))
        await g.add()
        await (await OneWorker.start(b)).end(part, Failed(FAILURE))
        await advance(b)
        await b.joins.sweep(-FAR)
        await advance(b)
        assert await b.joins.drop(g.group)
        assert await b.records.prune(older_than=-FAR, keep=0, limit=100) == 2
        await b.records.remove([part.id])
        await b.broker.depths()
        kinds = {key.partition(":")[0] for key in keys_of(redis_client, redis_namespace) - before}
        workers = {"worker", "workers", "owners", "index", "indexes", "incarnations", "standby"}
        assert kinds <= workers | {"sequence"}

    run_on_redis(redis_namespace, scenario)


def test_a_group_of_more_jobs_than_a_script_reads_is_dropped(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        g = await large_group(b)
        more = Graph(b, g.group)
        last = more.job(after=more.join(held=True))
        await more.add()
        assert not await b.joins.drop(g.group)
        await b.control.cancel([last.id], "")
        assert await b.joins.drop(g.group)
        assert not any(
            key.startswith(("join", "part", "dropped"))
            for key in keys_of(redis_client, redis_namespace)
        )

    run_on_redis(redis_namespace, scenario)


def test_records_beyond_more_kept_ones_than_a_script_reads_are_pruned(redis_namespace: str) -> None:
    async def scenario(b: Adapters) -> None:
        g = await large_group(b)
        await publish_and_settle(b)
        assert await b.records.prune(older_than=-FAR, keep=0, limit=100) == 1
        assert await b.joins.drop(g.group)
        assert await b.records.prune(older_than=-FAR, keep=0, limit=10_000) == MORE_THAN_A_PORTION

    run_on_redis(redis_namespace, scenario)


def test_a_result_is_read_of_a_part_whose_record_was_removed(redis_namespace: str) -> None:
    async def scenario(b: Adapters) -> None:
        g = Graph(b)
        join = g.join(part := g.job())
        await g.add()
        await (await OneWorker.start(b)).end(part, Failed(FAILURE))
        assert await b.records.remove([part.id]) == 1
        (found,) = await b.joins.results(join.id)
        assert (found.job, found.state, found.failure) == (part.id, State.BURIED, None)

    run_on_redis(redis_namespace, scenario)


def test_jobs_and_joins_that_were_deleted_manually_block_nothing(
    redis_namespace: str, redis_client: Any
) -> None:
    async def scenario(b: Adapters) -> None:
        root = root_of(redis_namespace)
        g = Graph(b)
        first, second = g.job(), g.job()
        gone, waiter = (g.job(after=join) for join in [g.join(first)] * 2)
        orphan = g.job(after=(lost := g.join(second)))
        await g.add()
        redis_client.delete(f"{root}:job:{gone.id}", f"{root}:join:{lost.id}")
        worker = await OneWorker.start(b)
        await worker.end(first)
        await worker.end(second)
        await advance(b)
        assert await state(b, waiter) is State.QUEUED
        assert await b.joins.resolve(orphan.id, Succeeded(RESULT))
        assert await b.joins.drop(g.group) is False
        await worker.end(waiter)
        assert await b.joins.drop(g.group)

    run_on_redis(redis_namespace, scenario)


def test_a_publication_that_would_keep_the_server_busy_is_refused(redis_namespace: str) -> None:
    async def scenario(b: Adapters) -> None:
        await register(b)
        jobs = tuple(envelope(b) for _ in range(MAX_PUBLICATION + 1))
        with pytest.raises(ConfigurationError, match="chunks"):
            await b.joins.add(Publication(envelopes=jobs))
        assert await b.broker.depths() == []

    run_on_redis(redis_namespace, scenario)
