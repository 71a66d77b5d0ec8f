"""The run: places and stands put up, every step taken, everything taken down again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.brokers import OnNats, OnRabbit, OnRedis, Pair, virtual_host
from benchmarks.environments import copy_source
from benchmarks.figures import Measures, middle
from benchmarks.places import OnPostgres, OnSqlite, Place, name_of
from benchmarks.plan import Step
from benchmarks.rows.limits import DRIVEN
from benchmarks.servers import Servers
from benchmarks.stand import Stand
from benchmarks.systems import Database, System, carrier_of


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

    def separated(self, is_first: Callable[[str], bool]) -> tuple[Results, Results]:
        """The rows for which this is true, and the others."""
        parts = Results(), Results()
        for row, systems in self.figures.items():
            parts[not is_first(row)].figures[row] = systems
        for failure in self.failures:
            parts[not is_first(failure.row)].failures.append(failure)
        return parts

    def on(self, *carriers: str) -> Results:
        """Only what was found where these carry the jobs."""
        found = Results()
        for row, systems in self.figures.items():
            for name, rounds in systems.items():
                if carrier_of(name) in carriers:
                    found.figures.setdefault(row, {})[name] = rounds
        found.failures = [one for one in self.failures if carrier_of(one.system) in carriers]
        return found


@dataclass(frozen=True)
class Ground:
    """What a run stands on."""

    stands: list[Stand]
    raw: dict[str, Place]


class _Places:
    """Makes places, and has them dropped at the end. What systems can share, they share."""

    def __init__(self, servers: Servers, folder: Path, stack: ExitStack) -> None:
        self._servers, self._folder, self._stack = servers, folder, stack
        self._shared: dict[Database, Place] = {}
        self._virtual_host = ""

    def of(self, system: System) -> Place:
        carrier = self.on(system.database, system)
        other = system.store or system.results
        if other is None:
            return carrier
        return Pair(carrier, self.on(other, system), counted=system.store is not None)

    def on(self, database: Database, system: System | None = None) -> Place:
        if database == "postgresql":
            owner = f"{system.peer}_{system.database}" if system else "raw"
            return self._kept(OnPostgres(self._servers[database], name_of(owner)))
        if database == "sqlite":
            return self._kept(OnSqlite(self._folder))
        if database == "rabbitmq":
            return self._kept(OnRabbit(self._rabbit(), system.queues if system else ()))
        if database not in self._shared:
            make = OnRedis if database == "redis" else OnNats
            self._shared[database] = self._kept(make(self._servers[database]))
        return self._shared[database]

    def _rabbit(self) -> str:
        if not self._virtual_host:
            host = virtual_host(self._servers["rabbitmq"])
            self._virtual_host = self._stack.enter_context(host)
        return self._virtual_host

    def _kept(self, place: Place) -> Place:
        self._stack.callback(place.drop)
        return place


@contextmanager
def ground(systems: Sequence[System], servers: Servers, folder: Path) -> Iterator[Ground]:
    """A stand for each system, and a place for each driver alone, taken down at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    databases = {system.database for system in systems}
    with ExitStack() as stack:
        places = _Places(servers, folder, stack)
        source = copy_source(Path(stack.enter_context(TemporaryDirectory(dir=folder))))
        stands = []
        for system in systems:
            stand = Stand(system, places.of(system), folder, source)
            stack.callback(stand.close)
            stands.append(stand)
        raw = {
            name: places.on(database) for name, database in DRIVEN.items() if database in databases
        }
        yield Ground(stands, raw)


def run(steps: Sequence[Step], tell: Callable[[Step], None]) -> Results:
    """Take every step; ``tell`` hears which comes next. A failure is noted, and the run goes on."""
    results = Results()
    for step in steps:
        tell(step)
        try:
            found = step.measure()
        except KeyboardInterrupt:  # what was measured until now is shown
            results.failures.append(Failure(step.row, step.system, "the run was stopped here"))
            break
        except Exception as failure:  # one that fails must not cost the others' figures
            results.failures.append(Failure(step.row, step.system, repr(failure)))
            continue
        for row, measures in found.items():
            if measures is not None:
                results.add(row, step.system, measures)
    return results
