"""The command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.environments import HERE, ROOT
from benchmarks.plan import GROUPS
from benchmarks.scales import FULL, NORMAL, QUICK, Scale
from benchmarks.systems import SYSTEMS, System

RUN = HERE / ".run"
PAGE = ROOT / "docs/reference/benchmarks.md"
ASSETS = ROOT / "docs/assets"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure, how much, and where the answer goes."""

    systems: tuple[System, ...]
    groups: tuple[str, ...]
    scale: Scale
    server: str
    json: Path
    charts: Path
    page: Path | None


def read(words: list[str] | None = None) -> Options:
    """Take the words of the command line; wrong ones end the program with a usage message."""
    parser = _parser()
    given = parser.parse_args(words)
    systems = tuple(s for s in SYSTEMS if not given.only or {s.peer, s.database} & set(given.only))
    scale = QUICK if given.quick else FULL if given.full else NORMAL
    if given.rounds:
        scale = replace(scale, rounds=given.rounds)
    return Options(
        systems=systems,
        groups=tuple(given.rows),
        scale=scale,
        server=given.database,
        json=given.json,
        charts=ASSETS if given.write_docs else RUN / "charts",
        page=PAGE if given.write_docs else None,
    )


def _parser() -> argparse.ArgumentParser:
    names = sorted({name for system in SYSTEMS for name in (system.peer, system.database)})
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.description = "Umbel beside its peers: the same work, on the same server."
    add = parser.add_argument
    add("--only", type=_several(names), default=[], help=f"of {', '.join(names)}")
    add("--rows", type=_several(GROUPS), default=GROUPS, help=f"of {', '.join(GROUPS)}")
    add("--rounds", type=int, help="how often each row is measured; the median counts")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="about three minutes")
    size.add_argument("--full", action="store_true", help="with ten million finished jobs")
    add("--json", type=Path, default=RUN / "results.json", help="where the figures go")
    add("--database", default="postgresql://postgres@127.0.0.1:5432/postgres", metavar="URL")
    add("--write-docs", action="store_true", help="put figures and charts into docs/")
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
