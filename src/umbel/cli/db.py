"""``umbel db migrate | status``."""

from __future__ import annotations

from umbel.cli.command_context import CommandContext, command, plain_group
from umbel.cli.output import print_json, print_line
from umbel.processes.exit_codes import FAILED

_MIGRATION_TIMEOUT_SECONDS = 600.0


@plain_group()
def db() -> None:
    """Bring the database schema up to date, or show its version."""


@command()
def migrate(context: CommandContext, as_json: bool) -> None:
    """Bring the schema up to date. It is safe to repeat, and to run several times at once."""
    backend = context.app_or_bare.backend

    async def work() -> tuple[list[int], tuple[int, int]]:
        return await backend.migrate(), await backend.version()

    applied, (version, _) = context.wait_for(work(), _MIGRATION_TIMEOUT_SECONDS)
    if as_json:
        print_json({"applied": applied, "version": version})
    elif applied:
        print_line(f"Applied {', '.join(map(str, applied))}. The schema is at version {version}.")
    else:
        print_line(f"Nothing to do. The schema is at version {version}.")


@command()
def status(context: CommandContext, as_json: bool) -> int:
    """Show the version of the schema. The exit code is 1 unless it is the one this Umbel needs."""
    version, newest = context.wait_for(context.app_or_bare.backend.version())
    fits = version == newest
    if as_json:
        print_json({"version": version, "newest": newest, "up_to_date": fits})
    elif fits:
        print_line(f"The schema is up to date: version {version}.")
    elif version < newest:
        seen = f"is at version {version}" if version else "is missing"
        print_line(f"The schema {seen}; this Umbel needs {newest}. Run: umbel db migrate")
    else:
        print_line(f"The schema is at version {version}; this Umbel knows {newest}. Upgrade Umbel.")
    return 0 if fits else FAILED


for _command in (migrate, status):
    db.add_command(_command)
