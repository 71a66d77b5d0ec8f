"""A system that is compared: how its worker is started, where it works, and what it promises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Database = Literal["postgresql", "sqlite", "redis", "rabbitmq", "nats"]
Kind = Literal["async", "sync"]

LABELS: dict[Database, str] = {
    "postgresql": "PostgreSQL",
    "sqlite": "SQLite",
    "redis": "Redis",
    "rabbitmq": "RabbitMQ",
    "nats": "NATS",
}
"""Where systems work, in the order of the tables."""

CLIENT = ("python", "-m", "benchmarks.client")


@dataclass(frozen=True, kw_only=True)
class System:
    """One system on one server, or on two that work as one."""

    peer: str
    variant: str = ""
    """A set-up besides the usual one, in a word or two."""
    groups: tuple[str, ...] = ()
    """The only groups of rows that it is in; all if not given."""
    database: Database
    """What carries its jobs."""
    store: Database | None = None
    """What keeps its records, where that is another server."""
    results: Database | None = None
    """What keeps the results of a round trip, where that is another server."""
    worker: tuple[str, ...]
    """The command of a worker; ``{processes}`` when one command starts several, ``{url}``."""
    unfinished: str | None = None
    """A query for how many jobs are not recorded as finished; None if nothing records it."""
    size: int
    """How many jobs a drain has: a few seconds' work."""
    kinds: tuple[Kind, ...] = ("async", "sync")
    processes: tuple[int, ...] = (1, 2)
    """Of how many worker processes a drain is measured."""
    queues: tuple[str, ...] = ()
    """What it leaves on a RabbitMQ server."""
    setup: str
    promises: str

    @property
    def place(self) -> str:
        """Where it works, for people."""
        both = (self.database, self.store)
        return " + ".join(LABELS[database] for database in both if database is not None)

    @property
    def name(self) -> str:
        return f"{f'{self.peer} {self.variant}'.strip()} · {self.place}"

    @property
    def servers(self) -> set[Database]:
        """Everything that has to be there."""
        found = {self.database, self.store, self.results}
        return {database for database in found if database is not None}

    @property
    def several(self) -> bool:
        """Whether its command starts several processes itself."""
        return any("{processes}" in word for word in self.worker)


def place_of(name: str) -> str:
    """The place in a system's name."""
    return name.partition(" · ")[2]


def carrier_of(name: str) -> str:
    """What carries the jobs, from a system's name or from its place."""
    return (place_of(name) or name).partition(" + ")[0]
