"""Operators' rates, on every store: they survive workers, and the code's rates come back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from integration.backends import opened
from integration.conftest import working
from umbel import Rate, Umbel
from umbel.backends import Gates, Roles
from umbel.control import LimitOverrides
from umbel.errors import ConfigurationError
from umbel.messages import Rule
from umbel.operations import Operations

RULE = "rate:ask"
HOUR = 3600.0


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    with opened(request.param, tmp_path) as (place, _):
        yield {"url": place.store, "namespace": place.namespace}


def app_with(urls: dict[str, Any], *rates: str | Rate) -> Umbel:
    app = Umbel(**urls, deadline=20, backlog="none")

    @app.task(name="ask", rate=[*rates])
    async def ask() -> None: ...

    return app


def ask(app: Umbel, question: Any) -> Any:
    async def main() -> Any:
        operations = app.operations()
        try:
            return await question(operations)
        finally:
            await operations.close()

    return asyncio.run(main())


def shown(app: Umbel) -> list[tuple[str, tuple[tuple[int, float], ...], int, bool]]:
    found = ask(app, lambda o: o.gates())
    return [(gate.key, gate.rates, gate.burst, gate.imposed) for gate in found]


def override(app: Umbel, rates: Any, rule: str = RULE) -> bool:
    async def change(operations: Operations) -> bool:
        return await operations.override_rates(rule, rates)

    return bool(ask(app, change))


def test_a_rate_of_an_operator_survives_workers_and_the_codes_rate_comes_back(
    urls: dict[str, Any],
) -> None:
    with closing(app_with(urls, "10/h")) as app:
        assert override(app, [(5, 1.0)]) is False, "no worker has declared it yet"
        with working(app):
            assert override(app, [(5, 1.0), (60, 60.0)]) is True
            assert shown(app) == [(RULE, ((5, 1.0), (60, 60.0)), 1, True)]
        with working(app):
            assert shown(app) == [(RULE, ((5, 1.0), (60, 60.0)), 1, True)]
        assert override(app, None) is True
        assert shown(app) == [(RULE, ((10, HOUR),), 1, False)]
        assert override(app, None) is True, "twice is fine"
        assert shown(app) == [(RULE, ((10, HOUR),), 1, False)]


def test_after_a_deployment_a_reset_returns_to_the_rate_of_the_new_code(
    urls: dict[str, Any],
) -> None:
    with closing(app_with(urls, "10/h")) as old, working(old):
        override(old, [(5, 1.0)])
    with closing(app_with(urls, "20/h")) as new:
        with working(new):
            assert shown(new) == [(RULE, ((5, 1.0),), 1, True)]
        override(new, [(7, 1.0)])
        override(new, None)
        assert shown(new) == [(RULE, ((20, HOUR),), 1, False)]


def test_the_burst_stays_that_of_the_code(urls: dict[str, Any]) -> None:
    with closing(app_with(urls, Rate("10/h", burst=4))) as app, working(app):
        assert override(app, [(5, 1.0)], f"{RULE}/burst-4") is True
        assert shown(app) == [(f"{RULE}/burst-4", ((5, 1.0),), 4, True)]


class SlowGates:
    """Gates of a worker that starts slowly: an operator changes the rate before it declares it."""

    def __init__(self, gates: Gates, change: Callable[[], Awaitable[object]]) -> None:
        self._gates = gates
        self._change: Callable[[], Awaitable[object]] | None = change

    async def declare(self, rules: Sequence[Rule], lifted: Sequence[str] = ()) -> None:
        change, self._change = self._change, None
        if change is not None:
            await change()
        await self._gates.declare(rules, lifted)


@pytest.mark.parametrize("reset", [False, True])
def test_an_operator_who_changes_a_rate_while_a_worker_starts_is_not_overruled(
    urls: dict[str, Any], reset: bool
) -> None:
    declared = Rule(name=RULE, kind="rate", rates=((10, HOUR),))

    async def main(roles: Roles) -> None:
        operator = LimitOverrides(roles.coordination, roles.gates)
        await operator.declare([declared])
        if reset:
            await operator.override_rates(RULE, ((5, 1.0),))
        rates = None if reset else ((5, 1.0),)
        slow: Any = SlowGates(roles.gates, lambda: operator.override_rates(RULE, rates))
        await LimitOverrides(roles.coordination, slow).declare([declared])
        (gate,) = await operator.gates(RULE, 10)
        assert gate.rates == (declared.rates if reset else ((5, 1.0),))
        assert gate.imposed is not reset
        await roles.close()

    with closing(app_with(urls, "10/h")) as app:
        asyncio.run(main(app.backend.open()))


@pytest.mark.parametrize("rates", [[], [(0, 1.0)], [(1, 0.0)], [(1, float("inf"))]])
def test_a_rate_without_numbers_above_zero_is_refused(rates: Any, tmp_path: Path) -> None:
    app = app_with({"url": f"sqlite:///{tmp_path}/umbel.db"}, "1/s")
    text = "give pairs of a number of jobs and seconds"
    with closing(app), pytest.raises(ConfigurationError, match=text):
        override(app, rates)


def test_a_queue_cannot_have_a_limit_of_each_worker() -> None:
    app, text = Umbel("sqlite:///:memory:"), "only tasks can have it"
    with closing(app), pytest.raises(ConfigurationError, match=text):
        app.queue("bulk", rate=Rate("1/s", per="worker"))
