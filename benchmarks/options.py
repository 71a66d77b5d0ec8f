"""The command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.entrants import SYSTEMS
from benchmarks.environments import HERE, ROOT
from benchmarks.plan import GROUPS
from benchmarks.scales import FULL, NORMAL, QUICK, Scale
from benchmarks.servers import HERE as USUAL
from benchmarks.servers import Servers
from benchmarks.systems import LABELS, Database, System

RUN = HERE / ".run"
DOCS = ROOT / "docs"
PAGE, ASSETS = "reference/benchmarks.md", "assets"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure, how much, and where the answer goes."""

    systems: tuple[System, ...]
    groups: tuple[str, ...]
    scale: Scale
    addresses: Servers
    json: Path
    charts: Path
    page: Path | None

    @property
    def servers(self) -> dict[Database, str]:
        """The addresses of those that take part."""
        needed = {database for system in self.systems for database in system.servers}
        return {name: url for name, url in self.addresses.items() if name in needed}


def read(words: list[str] | None = None) -> Options:
    """Take the words of the command line; wrong ones end the program with a usage message."""
    parser = _parser()
    given = parser.parse_args(words)
    systems = tuple(system for system in SYSTEMS if _is_chosen(system, given.only, given.on))
    if not systems:
        parser.error("nobody is left: --only and --on have nothing in common")
    docs: Path | None = given.write_docs
    page = docs / PAGE if docs else None
    if page is not None and not page.is_file():
        parser.error(f"--write-docs: there is no page {page}")
    scale = QUICK if given.quick else FULL if given.full else NORMAL
    if given.rounds:
        scale = replace(scale, rounds=given.rounds)
    return Options(
        systems=systems,
        groups=tuple(given.rows),
        scale=scale,
        addresses={
            "postgresql": given.database,
            "redis": given.redis,
            "rabbitmq": given.rabbitmq,
            "nats": given.nats,
        },
        json=given.json,
        charts=docs / ASSETS if docs else RUN / "charts",
        page=page,
    )


def _is_chosen(system: System, only: Sequence[str], on: Sequence[str]) -> bool:
    wanted = not only or bool({system.peer, system.database} & set(only))
    return wanted and (not on or system.database in on)


def _parser() -> argparse.ArgumentParser:
    names = sorted({name for system in SYSTEMS for name in (system.peer, system.database)})
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.description = "Umbel beside its peers: the same work, on the same server."
    add = parser.add_argument
    add("--only", type=_several(names), default=[], help=f"of {', '.join(names)}")
    add("--on", type=_several(list(LABELS)), default=[], help=f"of {', '.join(LABELS)}")
    add("--rows", type=_several(GROUPS), default=GROUPS, help=f"of {', '.join(GROUPS)}")
    add("--rounds", type=int, help="how often each row is measured; the median counts")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="smaller, and one round")
    size.add_argument("--full", action="store_true", help="with ten million finished jobs")
    add("--json", type=Path, default=RUN / "results.json", help="where the figures go")
    add("--database", default=USUAL["postgresql"], metavar="URL", help="a PostgreSQL server")
    add("--redis", default=USUAL["redis"], metavar="URL")
    add("--rabbitmq", default=USUAL["rabbitmq"], metavar="URL")
    add("--nats", default=USUAL["nats"], metavar="URL")
    add(
        "--write-docs",
        nargs="?",
        type=Path,
        const=DOCS,
        metavar="FOLDER",
        help="put figures and charts into docs/, or into another folder that has its page",
    )
    return parser


def _several(known: Sequence[str]) -> Callable[[str], list[str]]:
    def words(text: str) -> list[str]:
        found = [word.strip() for word in text.split(",") if word.strip()]
        if strange := sorted(set(found) - set(known)):
            raise argparse.ArgumentTypeError(
                f"{', '.join(strange)}: give some of {', '.join(known)}"
            )
        return found

    return words
