"""The run: places and stands put up, every step taken, everything taken down again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.environments import copy_source
from benchmarks.figures import Measures, middle
from benchmarks.places import OnPostgres, OnSqlite, Place, name_of
from benchmarks.plan import Step
from benchmarks.rows.limits import DRIVERS
from benchmarks.stand import Stand
from benchmarks.systems import Database, System


@dataclass(frozen=True)
class Failure:
    """A measurement that came to nothing, and the last words of what failed."""

    row: str
    system: str
    words: str


@dataclass
class Results:
    """Figures by row and system, a list over the rounds; and what went wrong."""

    figures: dict[str, dict[str, list[Measures]]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def add(self, row: str, system: str, measures: Measures) -> None:
        self.figures.setdefault(row, {}).setdefault(system, []).append(measures)

    def middle(self, row: str) -> dict[str, Measures]:
        """The medians of a row, by system."""
        return {name: middle(rounds) for name, rounds in self.figures.get(row, {}).items()}


@dataclass(frozen=True)
class Ground:
    """What a run stands on."""

    stands: list[Stand]
    raw: dict[str, Place]


@contextmanager
def ground(systems: Sequence[System], server: str, folder: Path) -> Iterator[Ground]:
    """A stand for each system, and a place for each driver alone, taken down at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    databases = {system.database for system in systems}
    with ExitStack() as stack:

        def place(database: Database, owner: str) -> Place:
            made: Place
            if database == "postgresql":
                made = OnPostgres(server, name_of(owner))
            else:
                made = OnSqlite(folder)
            stack.callback(made.drop)
            return made

        source = copy_source(Path(stack.enter_context(TemporaryDirectory(dir=folder))))
        stands = []
        for system in systems:
            stand = Stand(system, place(system.database, system.peer), folder, source)
            stack.callback(stand.close)
            stands.append(stand)
        raw = {
            name: place(database, "raw")
            for database, name in zip(("postgresql", "sqlite"), DRIVERS, strict=True)
            if database in databases
        }
        yield Ground(stands, raw)


def run(steps: Sequence[Step], tell: Callable[[Step], None]) -> Results:
    """Take every step; ``tell`` hears which comes next. A failure is noted, and the run goes on."""
    results = Results()
    for step in steps:
        tell(step)
        try:
            found = step.measure()
        except Exception as failure:  # one that fails must not cost the others' figures
            results.failures.append(Failure(step.row, step.system, repr(failure)))
            continue
        for row, measures in found.items():
            if measures is not None:
                results.add(row, step.system, measures)
    return results
