"""``python -m chaos``: real workers under real faults, and a check of everything they did."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from chaos.crew import FAKETIME
from chaos.machines import NotHere
from chaos.places import PLACES, Place, open_place
from chaos.planted import PLANTS
from chaos.running import Outcome, Plan, run

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
            with open_place(name, seed) as place:
                outcome = run(place, folder, plan)
                _report(place, outcome, folder, _repeat(options, name, seed))
        except NotHere as error:
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
    parser.add_argument("--seconds", type=float, default=90.0, help="of faults, on each broker")
    parser.add_argument("--seed", type=int, help="which faults come when")
    parser.add_argument(
        "--on",
        "--only",
        type=_names,
        default=["sqlite", "postgres"],
        metavar="BROKER,…",
        help=f"of {', '.join(PLACES)}; sqlite and postgres unless told",
    )
    parser.add_argument("--plant", choices=PLANTS, help="run workers with this bug")
    parser.add_argument("--faults", metavar="WORD,…", help="only those with such a word in them")
    parser.add_argument("--keep", metavar="DIR", help="keep diaries and logs there")
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in PLACES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(PLACES)}")
    return names


def _repeat(options: argparse.Namespace, name: str, seed: int) -> str:
    command = f'make chaos BROKER={name} ARGS="--seconds {options.seconds:g} --seed {seed}'
    for option in ("plant", "faults"):
        value = getattr(options, option)
        command += f" --{option} {value}" if value else ""
    return f'{command}"'


def _report(place: Place, outcome: Outcome, folder: Path, repeat: str) -> None:
    if place.without:
        _say(f"  {place.without}")
    if FAKETIME is None:
        _say("  not tried: wrong clocks (libfaketime is not installed)")
    if place.disk is not None:
        _say(f"  the full disk was {place.disk.what}")
    faults = ", ".join(f"{name} {times}" for name, times in sorted(outcome.faults.items()))
    _say(f"  faults: {outcome.faults.total()} ({faults})")
    _say("  " + ", ".join(f"{name} {count}" for name, count in outcome.figures.items()))
    if outcome.drained is not None:
        _say(f"  everything ended {outcome.drained:.0f} s after the last fault")
    _say(f"  violations: {len(outcome.violations)}")
    for job, what in outcome.violations[:_SHOWN]:
        _say(f"  VIOLATION {what}")
        _say(outcome.story.jobs[job].told() if job else _last_words(folder))
    if outcome.violations:
        _say(f"  to repeat: {repeat}")
        _say("  (the faults and jobs are the same; the moments at which they meet are not)")


def _last_words(folder: Path) -> str:
    """What processes said last that is no log line: why they ended."""
    lines = (folder / "processes.log").read_text(errors="replace").splitlines()
    return "\n".join(f"    {line}" for line in lines if not line.startswith("{"))[-2000:]


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers and workers end with us
    sys.exit(main())
