"""``umbel db migrate | status``."""

from __future__ import annotations

from umbel.cli.answers import answer, say
from umbel.cli.command_context import CommandContext, command, plain_group
from umbel.cli.errors import FAILED

_MIGRATING = 600.0


@plain_group()
def db() -> None:
    """Bring the database's schema up to date, or show its version."""


@command()
def migrate(frame: CommandContext, as_json: bool) -> None:
    """Bring the schema up to date. Safe to repeat, and to run from several places at once."""
    backend = frame.app_or_bare.backend

    async def work() -> tuple[list[int], tuple[int, int]]:
        return await backend.migrate(), await backend.version()

    applied, (version, _) = frame.wait_for(work(), _MIGRATING)
    if as_json:
        answer({"applied": applied, "version": version})
    elif applied:
        say(f"applied {', '.join(map(str, applied))}; the schema is at version {version}")
    else:
        say(f"nothing to do; the schema is at version {version}")


@command()
def status(frame: CommandContext, as_json: bool) -> int:
    """The schema's version, and whether it is this Umbel's. Exit code 1 when it is not."""
    version, newest = frame.wait_for(frame.app_or_bare.backend.version())
    fits = version == newest
    if as_json:
        answer({"version": version, "newest": newest, "up_to_date": fits})
    elif fits:
        say(f"up to date: version {version}")
    elif version < newest:
        seen = f"is at version {version}" if version else "is missing"
        say(f"the schema {seen}, this Umbel needs {newest}; run: umbel db migrate")
    else:
        say(f"the schema is at version {version}, this Umbel knows {newest}: upgrade Umbel")
    return 0 if fits else FAILED


for _command in (migrate, status):
    db.add_command(_command)
