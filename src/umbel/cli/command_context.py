"""What all commands share: the application, a call of its operations, and ``--json``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

# The application, asyncio and AnyIO are imported when a command needs them: the parent of a fleet
# needs none of them.
if TYPE_CHECKING:
    from umbel.app import Umbel
    from umbel.operations import Operations

T = TypeVar("T")

TIMEOUT_SECONDS = 5.0
"""How long a command waits for a server that does not answer."""

_MAY_BE_EMPTY = ("reason", "words")
"""Parameters that accept an empty text: the reason for a command, and arguments of a task."""


class CommandContext:
    """One run of the command line. The application is loaded on first use."""

    def __init__(self, address: str | None) -> None:
        self.address = address
        self._app: Umbel | None = None

    @property
    def app(self) -> Umbel:
        """The application. Raises AppError if it cannot be loaded."""
        if self._app is None:
            from umbel.processes.app_loading import load_app

            self._app = load_app(self.address)
        return self._app

    @property
    def app_or_bare(self) -> Umbel:
        """The application, or one without tasks for UMBEL_URL. Raises AppError."""
        if self._app is None:
            from umbel.processes.app_loading import load_app_or_bare

            self._app = load_app_or_bare(self.address)
        return self._app

    def run(
        self,
        work: Callable[[Operations], Awaitable[T]],
        timeout: float = TIMEOUT_SECONDS,
        namespace: str | None = None,
    ) -> T:
        """Call ``work`` with the operations of the application and return its result.

        What it changes is recorded in the audit log, with the name of the user of the system.
        ``namespace`` is another namespace on the same servers.

        Raises:
            Unavailable: the server did not answer within ``timeout`` seconds.
            UmbelError: raised by ``work``.
        """
        import asyncio

        return asyncio.run(_run_with_operations(self.app_or_bare, work, timeout, namespace))

    def wait_for(self, work: Awaitable[T], timeout: float = TIMEOUT_SECONDS) -> T:
        """Return the result of ``work``. Raises Unavailable if it takes too long."""
        import asyncio

        return asyncio.run(_run_with_timeout(work, self.app_or_bare, timeout))


async def _run_with_operations(
    app: Umbel,
    work: Callable[[Operations], Awaitable[T]],
    timeout: float,
    namespace: str | None,
) -> T:
    from contextlib import suppress

    import anyio

    from umbel.cli.operator import operator_name
    from umbel.errors import UmbelError
    from umbel.operations import record_changes

    operations = app.operations(namespace)
    record_changes(operations, operator_name(), "cli")
    try:
        return await _run_with_timeout(work(operations), app, timeout)
    finally:
        # The result exists by now; a server that hangs must not delay it.
        with anyio.move_on_after(1, shield=True), suppress(UmbelError):
            await operations.close()


async def _run_with_timeout(work: Awaitable[T], app: Umbel, timeout: float) -> T:
    import asyncio

    from umbel.errors import UmbelError, Unavailable

    try:
        async with asyncio.timeout(timeout):
            return await work
    except TimeoutError as error:
        if isinstance(error, UmbelError):
            raise
        url = app.settings.public()["broker"]
        raise Unavailable(
            f"{url} did not answer within {timeout:g} s; check that the server is running"
        ) from None


class Command(click.Command):
    """A command that rejects an empty name, such as an unset variable in a script.

    An empty filter must never be taken for no filter: ``umbel jobs purge --task "$TASK"`` would
    delete the jobs of every task.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        for parameter in self.get_params(ctx):
            value = given.get(parameter.name or "")
            words = value if isinstance(value, list | tuple) else [value]
            if parameter.name not in _MAY_BE_EMPTY and any(map(_is_blank, words)):
                remedy = "give a value" if parameter.required else "give a value, or leave it out"
                hint = parameter.get_error_hint(ctx)
                raise click.UsageError(f"{hint} is empty (an unset variable?): {remedy}.", ctx)
        return super().parse_args(ctx, args)


class SuggestingGroup(click.Group):
    """A group that answers an unknown command with the nearest one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args[0] not in known and args[0][:1] != "-" and not ctx.resilient_parsing:
            import difflib

            near = difflib.get_close_matches(args[0], known, n=1)
            remedy = f"Did you mean {near[0]}?" if near else f"Use one of {', '.join(known)}."
            raise click.UsageError(f"there is no command {args[0]!r:.80}. {remedy}", ctx)
        return super().resolve_command(ctx, args)


class Group(Command, SuggestingGroup):
    """A group that rejects empty names, and so do its commands."""

    command_class = Command


def _is_blank(word: object) -> bool:
    return isinstance(word, str) and not word.strip()


def command(
    *, cls: type[Command] = Command, **settings: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command that gets the CommandContext as its first argument and has ``--json``."""
    return lambda function: click.command(cls=cls, **settings)(_with_json(function))


def group() -> Callable[[Callable[..., Any]], click.Group]:
    """Make a group that runs the function itself when none of its commands is given."""

    def decorate(function: Callable[..., Any]) -> click.Group:
        inner = _with_json(function)

        @wraps(inner)
        def run_without_subcommand(*args: Any, **kwargs: Any) -> Any:
            has_subcommand = click.get_current_context().invoked_subcommand is not None
            return None if has_subcommand else inner(*args, **kwargs)

        return click.group(cls=Group, invoke_without_command=True)(run_without_subcommand)

    return decorate


def plain_group() -> Callable[[Callable[..., Any]], click.Group]:
    """Make a group that only holds commands."""
    return click.group(cls=Group)


def _with_json(function: Callable[..., Any]) -> Callable[..., Any]:
    option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
    return option(click.pass_obj(function))
