"""Write ``reference/capabilities.md`` from the adapters: ``python docs/write_capabilities.py``.

With ``--print``, print the table instead. ``make test`` does this after the suites have run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from umbel.backends import Capabilities
from umbel.backends.pairs.broker import capabilities_of_pair
from umbel.backends.postgres.broker import PostgresBroker
from umbel.backends.redis.broker import RedisBroker
from umbel.backends.sqlite.broker import SqliteBroker

PAGE = Path(__file__).parent / "reference" / "capabilities.md"

MEANINGS = {
    "transactional": "publish in your own transaction (`connection=`)",
    "blocking": "publish in the calling thread, without an event loop",
    "blocking_records": "read a result in the calling thread, without an event loop",
    "timed": "divide a caller's timeout between the transport and the store",
    "records": "publishing and settling also write the records, in one step",
    "delay": "`delay` and `not_before`",
    "priority": "priorities within a queue",
    "unique": "unique keys",
    "notify": "an idle worker is woken and need not poll",
    "move": "move the jobs of a queue to another queue",
    "forgets": '`track="failures"` keeps nothing of a job that succeeds',
}

HEAD = """\
# Capabilities of brokers and stores

This table shows what each adapter declares that it can do. The conformance suites skip the tests of
capabilities that an adapter does not have, and run all other tests over every adapter, on real
servers. `make test` prints what was run. A transport (RabbitMQ, NATS, AMQP 1.0, or Redis beside
another store) only carries messages. Such a pair has the capabilities in the columns
"transport + store". A link has the capabilities of its link server, except for transactions.
`python docs/write_capabilities.py` writes this page.

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
        yield f"transport + {name}", capabilities_of_pair(adapter.capabilities)


def table() -> str:
    found = dict(columns())
    missing = set(Capabilities.__struct_fields__) ^ set(MEANINGS)
    assert not missing, f"describe these capabilities in MEANINGS: {missing}"
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
