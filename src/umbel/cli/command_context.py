"""What every command has in common: the application, the question, the answer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import click

from umbel.app import Umbel
from umbel.errors import UmbelError, Unavailable

if TYPE_CHECKING:
    from umbel.operations import Operations

T = TypeVar("T")

DEADLINE = 5.0
"""Seconds after which a command gives up on a server that does not answer."""

_FREE_TEXT = ("reason", "words")
"""Parameters that may be empty: text of the user's own, and arguments of a task."""


class CommandContext:
    """One run of the command line. The application is loaded when first asked for."""

    def __init__(self, address: str | None) -> None:
        self.address = address
        self._app: Umbel | None = None

    @property
    def app(self) -> Umbel:
        """The application. Raises AppError when there is none to be found."""
        if self._app is None:
            from umbel.cli.loading import load

            self._app = load(self.address)
        return self._app

    @property
    def app_or_bare(self) -> Umbel:
        """The application, or a bare one for UMBEL_URL: enough to look after its server."""
        bare = self.address is None and any(map(os.environ.get, ("UMBEL_URL", "UMBEL_BROKER")))
        if self._app is None and bare:
            self._app = Umbel()
        return self.app

    def ask(self, work: Callable[[Operations], Awaitable[T]], deadline: float = DEADLINE) -> T:
        """What the work on operations returns.

        Raises:
            Unavailable: the server did not answer in time. UmbelError: what the work raises.
        """
        return asyncio.run(_asked(self.app_or_bare, work, deadline))

    def wait_for(self, work: Awaitable[T], deadline: float = DEADLINE) -> T:
        """What other work returns. Raises Unavailable when it takes too long."""
        return asyncio.run(_in_time(work, self.app_or_bare, deadline))


async def _asked(app: Umbel, work: Callable[[Operations], Awaitable[T]], deadline: float) -> T:
    operations = app.operations()
    try:
        return await _in_time(work(operations), app, deadline)
    finally:
        # The answer is there; a server that hangs now must not hold it back.
        with anyio.move_on_after(1, shield=True), suppress(UmbelError):
            await operations.close()


async def _in_time(work: Awaitable[T], app: Umbel, deadline: float) -> T:
    try:
        async with asyncio.timeout(deadline):
            return await work
    except TimeoutError as error:
        if isinstance(error, UmbelError):
            raise
        address = app.settings.public()["broker"]
        raise Unavailable(
            f"{address} did not answer within {deadline:g} s; check that the server runs"
        ) from None


class Command(click.Command):
    """A command that refuses an empty name, such as an unset variable in a script.

    An empty filter must never be taken for no filter: ``umbel jobs purge --task "$TASK"`` would
    delete the jobs of every task.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        for parameter in self.get_params(ctx):
            value = given.get(parameter.name or "")
            words = value if isinstance(value, list | tuple) else [value]
            if parameter.name not in _FREE_TEXT and any(map(_is_blank, words)):
                remedy = "give a value" if parameter.required else "give a value, or leave it out"
                hint = parameter.get_error_hint(ctx)
                raise click.UsageError(f"{hint} is empty (an unset variable?): {remedy}.", ctx)
        return super().parse_args(ctx, args)


class Group(Command, click.Group):
    """The same for a group and for the commands that are made in it."""

    command_class = Command


def _is_blank(word: object) -> bool:
    return isinstance(word, str) and not word.strip()


def command(
    *, cls: type[Command] = Command, **settings: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """A command that is handed the frame first and knows ``--json``."""
    return lambda function: click.command(cls=cls, **settings)(_with_json(function))


def group() -> Callable[[Callable[..., Any]], click.Group]:
    """A group that does something of its own when no command of it is named."""

    def decorate(function: Callable[..., Any]) -> click.Group:
        inner = _with_json(function)

        @wraps(inner)
        def unless_named(*args: Any, **kwargs: Any) -> Any:
            named = click.get_current_context().invoked_subcommand is not None
            return None if named else inner(*args, **kwargs)

        return click.group(cls=Group, invoke_without_command=True)(unless_named)

    return decorate


def plain_group() -> Callable[[Callable[..., Any]], click.Group]:
    """A group that only holds commands."""
    return click.group(cls=Group)


def _with_json(function: Callable[..., Any]) -> Callable[..., Any]:
    option = click.option("--json", "as_json", is_flag=True, help="Answer in JSON, for programs.")
    return option(click.pass_obj(function))
