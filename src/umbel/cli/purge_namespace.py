"""``umbel purge-namespace NAME``."""

from __future__ import annotations

import click

from umbel.cli.command_context import CommandContext, command
from umbel.cli.confirmation import require_name
from umbel.cli.formatting import count
from umbel.cli.output import print_json, print_line, print_note, print_table
from umbel.cli.progress import DeletionProgress
from umbel.operations import Operations

_COUNT_TIMEOUT_SECONDS = 600.0
_DELETE_TIMEOUT_SECONDS = 86_400.0


@command()
@click.argument("name")
@click.option("--queue", "queues", multiple=True, help="Also this queue of a separate broker.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@click.option("--force", is_flag=True, help="Delete it although workers are running.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def purge_namespace(
    context: CommandContext,
    name: str,
    queues: tuple[str, ...],
    dry_run: bool,
    force: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete everything that belongs to the namespace NAME. This cannot be undone.

    It deletes jobs with their results, histories and steps, limits, routes,
    pauses and workers from the store, and the queues from a separate broker: those of the
    application's tasks, of workers, of live jobs and of the newest finished ones. It is refused
    while workers of the namespace are running. If it is interrupted, run it again.
    """
    progress = DeletionProgress(context.app_or_bare.clock, "row")

    async def check(operations: Operations) -> dict[str, int]:
        if not force and not dry_run:
            await operations.refuse_while_running()
        return await operations.stored()

    stored = context.run(check, _COUNT_TIMEOUT_SECONDS, name)
    rows = sum(stored.values())
    if not as_json:
        _print_stored(name, stored)
    if dry_run:
        if as_json:
            print_json({"namespace": name, "stored": stored, "deleted": 0})
        return
    require_name(f"Delete the namespace {name}, {count(rows, 'row')}?", name, yes)
    gone = context.run(
        lambda operations: operations.erase(queues=queues, force=force, progress=progress),
        _DELETE_TIMEOUT_SECONDS,
        name,
    )
    if as_json:
        print_json({"namespace": name, "stored": stored, "deleted": gone})
    else:
        print_line(f"namespace {name}: {count(gone, 'row')} deleted")
    if force:
        # Until then, jobs with a limit wait: their gates are deleted, too.
        print_note("Restart workers that are running: they declare limits only when they start.")


def _print_stored(name: str, stored: dict[str, int]) -> None:
    if stored:
        rows = [(kind, f"{number:,}") for kind, number in sorted(stored.items())]
        print_table(("stored", "rows"), rows, right=("rows",))
    else:
        print_line(f"The store has nothing of the namespace {name}.")
