"""Growth: whether Umbel stays as fast with much history, with many waiting, with more of both."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.figures import Measures
from benchmarks.rows.drain import work_off
from benchmarks.scales import Scale
from benchmarks.stand import Stand
from benchmarks.systems import Database

_BODY = '{"args": [{"sent": 0, "number": 1, "user": "user-00012345"}], "kwargs": {}}'
_SECONDS = 60.0
_EVERYTHING = "1000000000"


@dataclass(frozen=True)
class Rows:
    """Statements that make rows out of nothing; words in braces are filled in."""

    waiting: str
    history: str
    settle: tuple[str, ...]
    """What makes the tables as they would be had the rows come one by one."""


_POSTGRES = Rows(
    waiting="""
        insert into umbel.job (id, namespace, queue, kind, task, body)
        select gen_random_uuid(), 'umbel', 'default', 'io', 'nothing', convert_to('{body}', 'UTF8')
        from generate_series(1, {count})""",
    history="""
        insert into umbel.record
          (id, namespace, queue, kind, task, type, state, priority, content_type, body, created,
           attempt, deaths, max_deaths, headers, fence, attempts, finished)
        select gen_random_uuid(), 'umbel', 'default', 'io', 'nothing', 'umbel.command',
          'succeeded', 0, 'application/json', convert_to('{body}', 'UTF8'), now(),
          1, 0, 3, '{}', 1, '[]', now() - n * interval '10 milliseconds'
        from generate_series({count}, 1, -1) n""",
    settle=("vacuum analyze umbel.job", "vacuum analyze umbel.record", "checkpoint"),
)
_NUMBERS = (
    "with recursive number(n) as (select 1 union all select n + 1 from number where n < {count})"
)
_ID = "printf('%08x-0000-4000-8000-%012x', abs(random()) % 4294967296, n)"
_NOW = "((julianday('now') - 2440587.5) * 86400.0)"
_SQLITE = Rows(
    waiting="""
        {numbers}
        insert into job (id, namespace, queue, kind, task, body, created)
        select {id}, 'umbel', 'default', 'io', 'nothing', cast('{body}' as blob),
          {now} from number""",
    history="""
        {numbers}
        insert into record
          (id, namespace, queue, kind, task, type, state, priority, content_type, body, created,
           attempt, deaths, max_deaths, headers, fence, attempts, finished)
        select {id}, 'umbel', 'default', 'io', 'nothing', 'umbel.command', 'succeeded', 0,
          'application/json', cast('{body}' as blob), {now},
          1, 0, 3, '{}', 1, '[]', {now} - n * 0.01 from number""",
    settle=("analyze", "pragma wal_checkpoint(truncate)"),
)
ROWS: dict[Database, Rows] = {"postgresql": _POSTGRES, "sqlite": _SQLITE}


def with_history(stand: Stand, scale: Scale, count: int) -> Measures | None:
    """Drain a full queue while so many finished jobs are remembered."""
    _begin(stand)
    if count:
        _make(stand, _rows(stand).history, count)
    return work_off(stand, stand.fill(scale.growth), _SECONDS, 1)


def with_waiting(stand: Stand, scale: Scale, count: int) -> Measures | None:
    """Drain the first jobs of a queue in which so many wait."""
    _begin(stand)
    _make(stand, _rows(stand).waiting, count)
    return work_off(stand, min(count, scale.growth), _SECONDS, 1, whole=count <= scale.growth)


def published_and_drained(stand: Stand, scale: Scale, count: int) -> Measures | None:
    """Publish so many in bulk, then drain them all."""
    _begin(stand)
    with stand.caller("in_bulk", jobs=count, seconds=4 * _SECONDS) as caller:
        result = caller.go()
    sent = int(result["jobs"] + result["warm"])
    drained = work_off(stand, sent, 4 * _SECONDS, 1)
    return drained | {"published": result["jobs"] / result["seconds"]}


def _begin(stand: Stand) -> None:
    stand.fresh()
    # History is here on purpose; forgetting it would be measured instead.
    stand.settings["UMBEL_KEEP_COUNT"] = _EVERYTHING


def _make(stand: Stand, statement: str, count: int) -> None:
    stand.place.execute(_filled_in(statement, count))
    for settle in _rows(stand).settle:
        stand.place.execute(settle)


def _filled_in(statement: str, count: int) -> str:
    words = {"numbers": _NUMBERS, "id": _ID, "now": _NOW, "body": _BODY, "count": str(count)}
    for name, text in words.items():
        statement = statement.replace(f"{{{name}}}", text)
    return statement


def _rows(stand: Stand) -> Rows:
    return ROWS[stand.system.database]
