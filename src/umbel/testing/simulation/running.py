"""Runs one seed or many, and sums up the results."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from umbel.testing.simulation.database import MemoryDatabase
from umbel.testing.simulation.world import World

STEPS = 20_000
"""The maximum number of steps of a run."""
_LAST_LINES = 60
_CHUNK = 50


@dataclass(frozen=True)
class Outcome:
    """The result of one seed."""

    seed: int
    violations: tuple[str, ...]
    steps: int
    faults: Counter[str]
    states: frozenset[int]
    log: tuple[str, ...]
    command: str

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {len(self.violations)} violations"]
        lines += [f"  {violation}" for violation in self.violations]
        lines += [f"  to repeat it: {self.command}", *self.log[-_LAST_LINES:]]
        return "\n".join(lines)


@dataclass
class Tally:
    """The sum of the results of many seeds."""

    seeds: int = 0
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    states: set[int] = field(default_factory=set)
    failures: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Add the result of one seed."""
        self.seeds += 1
        self.steps += outcome.steps
        self.faults.update(outcome.faults)
        self.states.update(outcome.states)
        if outcome.violations:
            self.failures.append(outcome)

    def merge(self, other: Tally) -> None:
        """Add the results of another tally."""
        self.seeds += other.seeds
        self.steps += other.steps
        self.faults.update(other.faults)
        self.states.update(other.states)
        self.failures += other.failures

    def __str__(self) -> str:
        faults = ", ".join(f"{name} {count}" for name, count in self.faults.most_common())
        return (
            f"seeds {self.seeds}, steps {self.steps}, distinct states {len(self.states)},"
            f" failing seeds {len(self.failures)}\nfaults: {faults}"
        )


def simulate(
    seed: int,
    *,
    steps: int = STEPS,
    processes: int | None = None,
    gated: bool = False,
    memory_database: MemoryDatabase | None = None,
    only_failures: bool = False,
) -> Outcome:
    """Run one seed. The same seed gives the same log, byte for byte.

    With ``only_failures``, only a failed seed has a log, which is faster.
    """
    world = World(seed, memory_database or MemoryDatabase(), processes, gated=gated)
    world.run(steps)
    failed = bool(world.auditor.violations)
    command = f"python -m umbel.testing.simulation --seed {seed}"
    command += f" --steps {steps}" if steps != STEPS else ""
    command += f" --processes {processes}" if processes is not None else ""
    command += " --gates" if gated else ""
    return Outcome(
        seed=seed,
        violations=tuple(world.auditor.violations),
        steps=world.timeline.steps,
        faults=world.rng.counts,
        states=frozenset(world.states),
        log=tuple(world.trace.lines()) if failed or not only_failures else (),
        command=command,
    )


def simulate_some(
    seeds: Iterable[int],
    *,
    steps: int = STEPS,
    processes: int | None = None,
    gated: bool = False,
    stop_after: int | None = None,
) -> Tally:
    """Run several seeds in this process until ``stop_after`` of them have failed."""
    tally, memory_database = Tally(), MemoryDatabase()
    how: Any = {"steps": steps, "processes": processes, "gated": gated}
    for seed in seeds:
        tally.add(simulate(seed, memory_database=memory_database, only_failures=True, **how))
        if stop_after is not None and len(tally.failures) >= stop_after:
            break
    return tally


def simulate_many(
    seeds: Sequence[int],
    *,
    steps: int = STEPS,
    processes: int | None = None,
    gated: bool = False,
    jobs: int = 2,
    progress: Callable[[Tally], None] = lambda tally: None,
) -> Tally:
    """Run many seeds on several cores."""
    tally = Tally()
    chunks = [seeds[at : at + _CHUNK] for at in range(0, len(seeds), _CHUNK)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for part in pool.map(_Chunk(steps, processes, gated), chunks):
            tally.merge(part)
            progress(tally)
    return tally


@dataclass(frozen=True)
class _Chunk:
    """Runs a chunk of seeds in a process of the pool."""

    steps: int
    processes: int | None
    gated: bool

    def __call__(self, seeds: Sequence[int]) -> Tally:
        how: Any = {"steps": self.steps, "processes": self.processes, "gated": self.gated}
        return simulate_some(seeds, **how)
