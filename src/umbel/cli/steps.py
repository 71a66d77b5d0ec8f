"""The steps a job has done: for programs as plain values, for people as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from umbel.cli.answers import say, table
from umbel.cli.words import clock, duration, moment
from umbel.messages import Step


def step_view(step: Step) -> dict[str, Any]:
    """A step without its result, which may be large."""
    return {
        "number": step.number,
        "name": step.name,
        "started": moment(step.started),
        "finished": moment(step.finished),
        "seconds": round(step.seconds, 6),
        "bytes": len(step.result.data),
        "content_type": step.result.content_type,
    }


def tell_steps(steps: Sequence[Step]) -> None:
    """Print them, if there are any."""
    if not steps:
        return
    say()
    rows = [
        (one.number, one.name, clock(one.finished), duration(one.seconds), len(one.result.data))
        for one in steps
    ]
    table(("step", "name", "done", "took", "bytes"), rows, right=("step", "took", "bytes"))
