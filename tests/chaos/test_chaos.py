"""A short chaos run and a short soak: no guarantee is broken, and planted bugs are found."""

from __future__ import annotations

import re

import pytest

from chaos import __main__ as chaos
from chaos import soak

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("chaos")]


@pytest.mark.parametrize(
    ("broker", "seconds", "seed"),
    [
        ("sqlite", "18", "7"),
        ("postgres", "18", "7"),
        # So short that the seed must inject the faults of servers first.
        ("redis", "8", "6942"),
        ("rabbitmq", "6", "1903"),
        ("nats", "6", "1903"),
        ("amqp", "6", "1903"),
    ],
)
def test_no_guarantee_is_broken_under_faults(
    broker: str, seconds: str, seed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = chaos.main(["--on", broker, "--seconds", seconds, "--seed", seed])
    said = capsys.readouterr().out
    if "not run:" in said:
        pytest.skip(said.splitlines()[-1].strip())
    with capsys.disabled():
        print(f"\n{said}", end="")
    assert not failed, said


@pytest.mark.parametrize(
    ("plant", "faults", "seconds", "rule"),
    [
        ("fence", "frozen", "14", "no (outcome under an old fence|two runs of coroutines overlap)"),
        ("record", "cancelled", "6", "nothing is lost"),
        ("pause", "paused", "8", "no worker claims after it confirmed a pause"),
    ],
)
def test_a_planted_bug_is_found(
    plant: str, faults: str, seconds: str, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["--on", "sqlite", "--seed", "3", "--seconds", seconds, "--faults", faults]
    failed = chaos.main([*run, "--plant", plant])
    said = capsys.readouterr().out
    assert failed, said
    assert re.search(f"VIOLATION {rule}", said), said
    assert f"--seed 3 --plant {plant} --faults {faults}" in said


def test_nothing_grows_under_steady_work(capsys: pytest.CaptureFixture[str]) -> None:
    leaks = soak.main(["--minutes", "0.6"])
    said = capsys.readouterr().out
    assert not leaks, said


@pytest.mark.parametrize(("leak", "series"), [("memory", "memory, MB"), ("connection", "files")])
def test_a_planted_leak_is_found(
    leak: str, series: str, capsys: pytest.CaptureFixture[str]
) -> None:
    leaks = soak.main(["--minutes", "0.4", "--only", "sqlite", "--leak", leak])
    said = capsys.readouterr().out
    assert leaks, said
    found = [line for line in said.splitlines() if line.endswith("LEAKS")]
    assert any(f"worker 0 {series}" in line for line in found), said
    assert not any("publisher" in line for line in found), said
