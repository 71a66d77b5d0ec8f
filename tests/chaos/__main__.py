"""``python -m chaos``: run real workers under real faults, then check the recorded history."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from chaos.backends_under_test import BACKENDS, BackendUnderTest, open_backend
from chaos.chaos_run import Outcome, Plan, run
from chaos.planted_bugs import PLANTS
from chaos.processes_under_test import FAKETIME
from chaos.server_processes import NotAvailable

_SHOWN = 5


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    worst = 0
    for name in options.on:
        words = tuple(options.faults.split(",")) if options.faults else ()
        plan = Plan(options.seconds, seed, options.plant or "", words, _say)
        _say(f"{name}: {options.seconds:g} s of chaos, seed {seed}")
        folder = Path(tempfile.mkdtemp(prefix="umbel-chaos-"))
        try:
            with open_backend(name, seed) as backend:
                outcome = run(backend, folder, plan)
                _report(backend, outcome, folder, _repeat(options, name, seed))
        except NotAvailable as error:
            _say(f"  {error}")
            continue
        finally:
            if options.keep:
                shutil.copytree(folder, Path(options.keep) / name, dirs_exist_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
        worst = max(worst, 1 if outcome.violations else 0)
    return worst


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=90.0, help="how long to inject faults, on each broker"
    )
    parser.add_argument("--seed", type=int, help="selects the faults and their times")
    parser.add_argument(
        "--on",
        "--only",
        type=_names,
        default=["sqlite", "postgres"],
        metavar="BROKER,…",
        help=f"of {', '.join(BACKENDS)}; default: sqlite and postgres",
    )
    parser.add_argument("--plant", choices=PLANTS, help="run workers with this bug")
    parser.add_argument(
        "--faults", metavar="WORD,…", help="only faults whose name contains one of these words"
    )
    parser.add_argument("--keep", metavar="DIR", help="keep event logs and process logs there")
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in BACKENDS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(BACKENDS)}")
    return names


def _repeat(options: argparse.Namespace, name: str, seed: int) -> str:
    command = f'make chaos BROKER={name} ARGS="--seconds {options.seconds:g} --seed {seed}'
    for option in ("plant", "faults"):
        value = getattr(options, option)
        command += f" --{option} {value}" if value else ""
    return f'{command}"'


def _report(backend: BackendUnderTest, outcome: Outcome, folder: Path, repeat: str) -> None:
    if backend.without:
        _say(f"  {backend.without}")
    if FAKETIME is None:
        _say("  not tried: wrong clocks (libfaketime is not installed)")
    if backend.disk is not None:
        _say(f"  the full disk was {backend.disk.what}")
    faults = ", ".join(f"{name} {times}" for name, times in sorted(outcome.faults.items()))
    _say(f"  faults: {outcome.faults.total()} ({faults})")
    _say("  " + ", ".join(f"{name} {count}" for name, count in outcome.figures.items()))
    if outcome.drained is not None:
        _say(f"  everything ended {outcome.drained:.0f} s after the last fault")
    _say(f"  violations: {len(outcome.violations)}")
    for job, what in outcome.violations[:_SHOWN]:
        _say(f"  VIOLATION {what}")
        _say(outcome.history.jobs[job].describe() if job else _process_output(folder))
    if outcome.violations:
        _say(f"  to repeat: {repeat}")
        _say("  (the faults and the jobs are the same; their timing relative to each other is not)")


def _process_output(folder: Path) -> str:
    """Return the end of the processes' output without log lines: it shows why they ended."""
    lines = (folder / "processes.log").read_text(errors="replace").splitlines()
    return "\n".join(f"    {line}" for line in lines if not line.startswith("{"))[-2000:]


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end servers and workers too
    sys.exit(main())
