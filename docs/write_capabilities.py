"""Writes ``reference/capabilities.md`` from the adapters: ``python docs/write_capabilities.py``.

With ``--print`` it prints the table instead, as ``make test`` does after the suites have run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from umbel.backends import Capabilities
from umbel.backends.pairs.broker import carried
from umbel.backends.postgres.broker import PostgresBroker
from umbel.backends.redis.broker import RedisBroker
from umbel.backends.sqlite.broker import SqliteBroker

PAGE = Path(__file__).parent / "reference" / "capabilities.md"

MEANINGS = {
    "transactional": "publish in your own transaction (`connection=`)",
    "direct": "publish in the calling thread, without an event loop",
    "records": "publishing, settling and records are one step",
    "delay": "delays and not-before",
    "priority": "priorities within a queue",
    "unique": "unique keys",
    "notify": "an idle worker is woken, not left to poll",
    "move": "move a queue's jobs to another",
    "forgets": '`track="failures"` leaves nothing behind of a success',
}

HEAD = """\
# Capabilities of brokers and stores

What each adapter says it can do. The conformance suites ask for these words and run everything else
over every adapter, on real servers: `make test` prints what was run. A transport (RabbitMQ, NATS,
AMQP 1.0, Redis beside another store) only carries; with it, a store's capabilities are those of the
pair. A link has those of whoever serves it, but for transactions. This page is written by
`python docs/write_capabilities.py`.

"""


def columns() -> Iterator[tuple[str, Capabilities]]:
    alone: dict[str, Any] = {
        "SQLite": SqliteBroker,
        "PostgreSQL": PostgresBroker,
        "Redis": RedisBroker,
    }
    for name, adapter in alone.items():
        yield name, adapter.capabilities
    for name, adapter in alone.items():
        yield f"transport + {name}", carried(adapter.capabilities)


def table() -> str:
    found = dict(columns())
    missing = set(Capabilities.__struct_fields__) ^ set(MEANINGS)
    assert not missing, f"say what these mean: {missing}"
    head = ["", *found]
    rows = [
        [meaning, *("yes" if getattr(can, name) else "–" for can in found.values())]
        for name, meaning in MEANINGS.items()
    ]
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    lines = [_line(head, widths), _line(["-" * width for width in widths], widths)]
    return "\n".join([*lines, *(_line(row, widths) for row in rows)]) + "\n"


def _line(cells: list[str], widths: list[int]) -> str:
    return f"| {' | '.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))} |"


def page() -> str:
    return HEAD + table()


if __name__ == "__main__":
    if "--print" in sys.argv:
        sys.stdout.write(table())
    else:
        PAGE.write_text(page())
