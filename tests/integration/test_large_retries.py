"""Retries of graphs with very many nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from integration.running import ask, redis, until, working
from umbel import Handle, Umbel, chain, group
from umbel.errors import NotAllowed
from umbel.messages import fresh_id
from umbel.operations import RetriedGraph

MORE_THAN_A_STEP = 2_100


@pytest.fixture
def app() -> Iterator[Umbel]:
    namespace = f"t{fresh_id()}"
    with redis(namespace) as url:
        app = Umbel(url, namespace=namespace, deadline=30.0)
        yield app
        app.close()


def failing(app: Umbel) -> Any:
    """A task that fails."""

    @app.task(name="fail", retry=0)
    async def fail(number: int) -> int:
        raise ValueError("broken")

    return fail


def retry(app: Umbel, handle: Handle[Any]) -> RetriedGraph:
    return ask(app, lambda operations: operations.graphs.retry(handle.id))


def test_a_chain_of_10_000_that_failed_at_its_first_link_is_retried(app: Umbel) -> None:
    fail = failing(app)
    with working(app, io=50):
        handle = chain(*[fail.s() for _ in range(10_000)]).delay(1)
        with pytest.raises(ValueError, match="broken"):
            handle.get(timeout=60)
    assert retry(app, handle).jobs == 10_001


def test_more_failed_nodes_than_one_step_reopens_are_retried(app: Umbel) -> None:
    fail = failing(app)
    with working(app, io=50):
        handle = group(fail.map(range(MORE_THAN_A_STEP)), errors="fail").delay()
        with pytest.raises(ValueError, match="broken"):
            handle.get(timeout=60)
        until(lambda: all(node.has_ended for node in handle.graph.nodes), "all nodes")
    retried = retry(app, handle)
    assert len(retried.nodes) == MORE_THAN_A_STEP
    graph = app.handle(handle.id).graph
    assert graph.counts() == {"queued": MORE_THAN_A_STEP}


def test_the_error_for_too_many_waiting_nodes_says_what_to_do(app: Umbel) -> None:
    fail = failing(app)
    with working(app, io=50):
        handle = (fail.s(1) | group(fail.s() for _ in range(20_001))).delay()
        with pytest.raises(ValueError, match="broken"):
            handle.get(timeout=60)
    with pytest.raises(NotAllowed, match=r"more than 20,000 jobs wait for them.*start a new graph"):
        retry(app, handle)
    assert app.handle(handle.id).graph.counts() == {"buried": 1, "cancelled": 20_001}
