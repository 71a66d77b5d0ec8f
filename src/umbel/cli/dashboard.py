"""``umbel dashboard``: serves the web pages; ``users`` and ``tokens`` say who may use them."""

from __future__ import annotations

import sys
from typing import cast

import click

from umbel.cli.command_context import CommandContext, command, group, plain_group
from umbel.cli.formatting import count, duration
from umbel.cli.output import print_json, print_line, print_note, print_table
from umbel.cli.times import seconds
from umbel.control import ROLES, Role, Token, User
from umbel.errors import ConfigurationError, NotAllowed
from umbel.operations import Operations
from umbel.processes.dashboard_process import open_dashboard

_ROLE = click.option(
    "--role",
    type=click.Choice(ROLES),
    default="viewer",
    show_default=True,
    help="viewer: only look. operator: also act. admin: also purge, users and audit log.",
)


@group()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8080, show_default=True, help="Port; 0 chooses a free one.")
@click.option("--login", is_flag=True, help="Require a login, also on this machine.")
@click.option("--host-name", "hosts", multiple=True, help="A name under which browsers reach it.")
@click.option("--prefix", default="", help="The path under which a reverse proxy serves it.")
@click.option("--https", "is_https", is_flag=True, help="Browsers reach it by HTTPS.")
@click.option("--proxy-header", default="", help="The header in which a proxy names the user.")
@click.option(
    "--proxy", "proxies", multiple=True, help="The IP address or network of a trusted proxy."
)
@click.option("--mask", multiple=True, help="An argument or field that viewers do not see.")
def dashboard(
    context: CommandContext,
    host: str,
    port: int,
    login: bool,
    hosts: tuple[str, ...],
    prefix: str,
    is_https: bool,
    proxy_header: str,
    proxies: tuple[str, ...],
    mask: tuple[str, ...],
    as_json: bool,
) -> None:
    """Serve the dashboard and its HTTP interface until Ctrl-C.

    On this machine, no login is needed. For other machines, add users and give --login.
    """
    options = {
        "host": host,
        "port": port,
        "login": login,
        "hosts": hosts,
        "prefix": prefix,
        "is_https": is_https,
        "proxy_header": proxy_header,
        "proxies": proxies,
        "mask": mask,
    }
    opened = open_dashboard(context.app_or_bare, context.address, **options)
    print_json({"url": opened.url}) if as_json else print_line(f"dashboard  {opened.url}")
    opened.run()


# --- users -----------------------------------------------------------------------------------


@plain_group()
def users() -> None:
    """List, add and remove users of the dashboard."""


@command(name="list")
def list_users(context: CommandContext, as_json: bool) -> None:
    """List the users."""

    async def work(operations: Operations) -> list[User]:
        return await operations.access.users()

    found = context.run(work)
    if as_json:
        print_json([{"name": user.name, "role": user.role} for user in found])
    elif found:
        print_table(("name", "role"), [(user.name, user.role) for user in found])
    else:
        print_line("No users yet. Add one with: umbel dashboard users add NAME")


@command(name="add")
@click.argument("name")
@_ROLE
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
def add_user(
    context: CommandContext, name: str, role: str, password_stdin: bool, as_json: bool
) -> None:
    """Add a user, or change the role and password of one. The password is asked for."""
    if not (password_stdin or sys.stdin.isatty()):
        raise click.UsageError("the password is asked for on a terminal; give --password-stdin.")
    if password_stdin:
        password = sys.stdin.readline().rstrip("\n")
    else:
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)

    async def work(operations: Operations) -> None:
        await operations.access.set_user(name, cast(Role, role), password)

    context.run(work)
    if as_json:
        print_json({"name": name, "role": role})
    else:
        print_line(f"{name} is a user with the role {role}.")


@command(name="remove")
@click.argument("name")
def remove_user(context: CommandContext, name: str, as_json: bool) -> None:
    """Remove a user and end the user's sessions."""

    async def work(operations: Operations) -> bool:
        return await operations.access.remove_user(name)

    if not context.run(work):
        raise NotAllowed(f"there is no user {name!r}; umbel dashboard users list shows them")
    print_json({"removed": name}) if as_json else print_line(f"{name} was removed.")


# --- tokens ----------------------------------------------------------------------------------


@plain_group()
def tokens() -> None:
    """List, add and remove tokens for programs that use the HTTP interface."""


@command(name="list")
def list_tokens(context: CommandContext, as_json: bool) -> None:
    """List the tokens, without their secrets."""

    async def work(operations: Operations) -> list[Token]:
        return await operations.access.tokens()

    found = context.run(work)
    if as_json:
        print_json([{"name": one.name, "role": one.role, "left": one.left} for one in found])
    elif found:
        rows = [
            (one.name, one.role, "" if one.left is None else f"in {duration(one.left)}")
            for one in found
        ]
        print_table(("name", "role", "expires"), rows)
    else:
        print_line("No tokens yet. Add one with: umbel dashboard tokens add NAME")


@command(name="add")
@click.argument("name")
@_ROLE
@click.option(
    "--expires",
    default="90d",
    show_default=True,
    callback=seconds,
    metavar="TIME",
    help="How long it is valid: 12h, 90d.",
)
def add_token(context: CommandContext, name: str, role: str, expires: float, as_json: bool) -> None:
    """Make a token and print it. It cannot be printed again."""

    async def work(operations: Operations) -> str:
        return await operations.access.add_token(name, cast(Role, role), expires)

    secret = context.run(work)
    if as_json:
        print_json({"name": name, "role": role, "token": secret})
    else:
        print_line(secret)
        print_note("Send it in the header: Authorization: Bearer TOKEN")


@command(name="remove")
@click.argument("name")
def remove_token(context: CommandContext, name: str, as_json: bool) -> None:
    """Remove the tokens with this name."""

    async def work(operations: Operations) -> int:
        return await operations.access.remove_token(name)

    removed = context.run(work)
    if not removed:
        raise ConfigurationError(f"there is no token {name!r}; umbel dashboard tokens list")
    if as_json:
        print_json({"removed": removed})
    else:
        print_line(f"{count(removed, 'token')} removed.")


for one in (list_users, add_user, remove_user):
    users.add_command(one)
for one in (list_tokens, add_token, remove_token):
    tokens.add_command(one)
dashboard.add_command(users)
dashboard.add_command(tokens)
