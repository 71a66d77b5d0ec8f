"""The promises hold for thousands of seeds; a planted bug is found (promises 2 to 6 and 9)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from planted_bugs import PLANTED, PLANTED_GATES, Plant
from regression_seeds import SEEDS_THAT_ONCE_FAILED

from umbel.testing.simulation import Outcome, simulate, simulate_some

SEEDS = 1_000
GATED = 250
CHUNK = 125
WITHIN = 1500
"""The maximum number of seeds until a planted bug is found."""


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_the_promises_hold_for_every_seed(first: int) -> None:
    tally = simulate_some(range(first, first + CHUNK), stop_after=1)
    assert not tally.failures, f"\n{tally.failures[0]}"


@pytest.mark.parametrize("first", range(0, GATED, CHUNK))
def test_no_gate_admits_too_many_jobs_for_any_seed(first: int) -> None:
    tally = simulate_some(range(first, first + CHUNK), gated=True, stop_after=1)
    assert not tally.failures, f"\n{tally.failures[0]}"


@pytest.mark.parametrize("plant", PLANTED_GATES, ids=lambda plant: plant.__name__)
def test_a_bug_planted_in_the_gates_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plant(monkeypatch)
    tally = simulate_some(range(WITHIN), gated=True, stop_after=1)
    assert tally.failures, f"not found in {tally.seeds} seeds"
    violations = " ".join(tally.failures[0].violations)
    assert any(text in violations for text in expected), tally.failures[0]


@pytest.mark.parametrize("seed", SEEDS_THAT_ONCE_FAILED, ids=str)
def test_a_seed_that_once_failed_passes(seed: int) -> None:
    outcome = simulate(seed)
    assert not outcome.violations, f"{SEEDS_THAT_ONCE_FAILED[seed]}\n{outcome}"


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plant(monkeypatch)
    tally = simulate_some(range(WITHIN), stop_after=1)
    assert tally.failures, f"not found in {tally.seeds} seeds"
    violations = " ".join(tally.failures[0].violations)
    assert any(text in violations for text in expected), tally.failures[0]


def test_the_same_seed_gives_the_same_run_byte_for_byte() -> None:
    first, second = simulate(32), simulate(32)
    assert len(first.log) > 50
    assert first.log == second.log
    assert first == second


def test_neither_hash_seeds_nor_addresses_change_a_run() -> None:
    command = [sys.executable, "-m", "umbel.testing.simulation", "--seed", "5"]
    logs = {
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(logs) == 1
    assert logs.pop().splitlines()[:-1] == [line.encode() for line in simulate(5).log]


def test_another_seed_gives_another_run() -> None:
    assert simulate(5).log != simulate(6).log


def test_every_kind_of_fault_happens() -> None:
    faults = simulate_some(range(60)).faults
    missing = [name for name in EVERY_FAULT if not faults[name]]
    assert not missing


def test_a_failing_seed_reports_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    PLANTED[0](monkeypatch)
    failure: Outcome = simulate_some(range(WITHIN), processes=2, stop_after=1).failures[0]
    report = str(failure).splitlines()
    command = f"python -m umbel.testing.simulation --seed {failure.seed} --processes 2"
    assert report[0].startswith(f"seed {failure.seed}: ")
    assert f"  to repeat it: {command}" in report
    assert any("WRONG" in line for line in report)


EVERY_FAULT = (
    "crash",
    "crash before",
    "crash after",
    "poison",
    "stall",
    "block",
    "slow",
    "lost",
    "refused",
    "hang",
    "outage",
    "cut",
    "cut heartbeat",
    "jump",
    "term",
    "hurry",
    "pause",
    "resume",
    "cancel",
    "replay",
    "late claim",
    "hint dropped",
    "hint doubled",
)
