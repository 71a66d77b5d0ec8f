"""``umbel health``: for operators, scripts and container checks."""

from __future__ import annotations

from umbel.cli.command_context import CommandContext, command
from umbel.cli.formatting import count
from umbel.cli.output import print_json, print_line
from umbel.processes.exit_codes import FAILED, UNREACHABLE


@command()
def health(context: CommandContext, as_json: bool) -> int:
    """Check that jobs can run: the server answers, workers run, every queue has a worker.

    Pauses are listed, but they do not make the result unhealthy.

    Exit codes: 0 healthy, 1 not healthy, 3 the server cannot be reached.
    """
    found = context.run(lambda operations: operations.health())
    if as_json:
        print_json(found)
    else:
        pauses = f", with {count(len(found.pauses), 'pause')}" if found.pauses else ""
        print_line(("healthy" if found.ok else "not healthy") + pauses)
        for name, text in found.checks.items():
            print_line(f"  {name:8} {text}")
    if found.ok:
        return 0
    return FAILED if "workers" in found.checks else UNREACHABLE
