"""The steps that a job has completed: as plain data for programs, as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from umbel.cli.formatting import duration, local_time
from umbel.cli.output import print_line, print_table
from umbel.clock import iso_time
from umbel.messages import Step


def step_document(step: Step) -> dict[str, Any]:
    """Return a step as plain data, without its result, which may be large."""
    return {
        "number": step.number,
        "name": step.name,
        "started": iso_time(step.started),
        "finished": iso_time(step.finished),
        "seconds": round(step.seconds, 6),
        "bytes": len(step.result.data),
        "content_type": step.result.content_type,
    }


def print_steps(steps: Sequence[Step]) -> None:
    """Print the steps, if there are any."""
    if not steps:
        return
    print_line()
    rows = [
        (
            one.number,
            one.name,
            local_time(one.finished),
            duration(one.seconds),
            len(one.result.data),
        )
        for one in steps
    ]
    print_table(("step", "name", "done", "took", "bytes"), rows, right=("step", "took", "bytes"))
