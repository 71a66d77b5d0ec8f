"""``python -m umbel.testing.simulation``: run seeds and print what they found."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from umbel.testing.simulation.running import STEPS, Tally, simulate, simulate_many

_MAX_SHOWN_FAILURES = 3


@click.command()
@click.option("--seeds", default=1000, show_default=True, help="Number of seeds to run.")
@click.option("--first", default=0, show_default=True, help="The first seed.")
@click.option("--seed", type=int, help="Run only this seed and print its whole log.")
@click.option("--steps", default=STEPS, show_default=True, help="Steps after which a run ends.")
@click.option("--processes", type=int, help="Simulated workers. [default: chosen by the seed]")
@click.option("--gates", "gated", is_flag=True, help="Let jobs pass gates, too.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Cores to use.")
def main(
    seeds: int,
    first: int,
    seed: int | None,
    steps: int,
    processes: int | None,
    gated: bool,
    jobs: int,
) -> None:
    """Run Umbel's claims, leases, heartbeats and recovery in virtual time, with seeded faults."""
    if seed is not None:
        outcome = simulate(seed, steps=steps, processes=processes, gated=gated)
        click.echo("\n".join(outcome.log))
        click.echo(f"seed {seed}: {outcome.steps} steps, {len(outcome.violations)} violations")
        sys.exit(bool(outcome.violations))
    chosen = range(first, first + seeds)
    how: Any = {"steps": steps, "processes": processes, "gated": gated}
    tally = simulate_many(chosen, jobs=jobs, progress=_print_progress, **how)
    click.echo("", err=True)
    for failure in tally.failures[:_MAX_SHOWN_FAILURES]:
        click.echo(f"{failure}\n")
    for failure in tally.failures[_MAX_SHOWN_FAILURES:]:
        click.echo(f"seed {failure.seed}: {failure.violations[0]}")
    click.echo(str(tally))
    sys.exit(bool(tally.failures))


def _print_progress(tally: Tally) -> None:
    click.echo(f"\r{tally.seeds} seeds, {len(tally.failures)} failed", err=True, nl=False)


if __name__ == "__main__":
    main()
