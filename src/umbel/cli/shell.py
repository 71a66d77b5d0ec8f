"""``umbel shell``: a Python prompt with the application, its tasks and the operations."""

from __future__ import annotations

import code
import sys
import textwrap
import traceback
from collections.abc import Callable, Mapping
from functools import wraps
from importlib.util import find_spec
from inspect import iscoroutinefunction
from typing import Any

import click

from umbel.app import Umbel
from umbel.backends import JobFilter
from umbel.cli.command_context import CommandContext, command
from umbel.cli.operator import operator_name
from umbel.cli.output import print_json
from umbel.errors import UmbelError
from umbel.messages import State
from umbel.operations import JobSearch, Operations, record_changes
from umbel.processes.exit_codes import FAILED
from umbel.publisher import Bridge

_BANNER_WIDTH = 80


@command()
@click.option("-c", "code_text", metavar="CODE", help="Run this code instead of a prompt.")
def shell(context: CommandContext, code_text: str | None, as_json: bool) -> int:
    """Start a Python prompt with the application, its tasks and the operations.

    \b
    app         the application
    tasks       its tasks, by their full names; each is also a variable
    operations  what operators can do; every call waits for its result
    JobFilter, JobSearch, State

    It uses IPython if that is installed. -c runs code for scripts, and so does a file on stdin.
    With --json, the code is one expression, whose value is printed.

    \b
    umbel -A shop shell -c 'print(operations.job("01a1e3af-…").state)'
    """
    app = context.app_or_bare
    bridge = Bridge()
    opened = bridge.run(_open(app))
    try:
        names = _names(app, BlockingOperations(opened, bridge))
        if code_text is not None:
            return _execute(code_text, "-c", names, as_json)
        if not sys.stdin.isatty():
            return _execute(sys.stdin.read(), "<stdin>", names, as_json)
        if as_json:
            raise click.UsageError("--json: give an expression with -c or on standard input.")
        _interact(names, _banner(app, names))
        return 0
    finally:
        bridge.run(opened.close())
        bridge.close()
        app.close()


class BlockingOperations:
    """The operations, or a part of them; a call blocks until it has its result."""

    def __init__(self, inner: object, bridge: Bridge) -> None:
        self._inner = inner
        self._bridge = bridge

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if iscoroutinefunction(value):
            return _blocking(value, self._bridge)
        return BlockingOperations(value, self._bridge) if _has_coroutines(value) else value

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._inner) if not name.startswith("_")]


def _has_coroutines(value: object) -> bool:
    kind = type(value)
    return any(iscoroutinefunction(getattr(kind, name, None)) for name in dir(kind))


def _blocking(method: Callable[..., Any], bridge: Bridge) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return bridge.run(method(*args, **kwargs))

    return call


async def _open(app: Umbel) -> Operations:
    """Return the operations. The event loop that uses them must open them."""
    operations = app.operations()
    record_changes(operations, operator_name(), "cli")
    return operations


def _names(app: Umbel, operations: BlockingOperations) -> dict[str, Any]:
    """Return the variables of the prompt. A name that several tasks share is not one of them."""
    tasks = {task.name: task for task in app.registry}
    ends = [name.rpartition(".")[2] for name in tasks]
    short = dict(zip(ends, tasks.values(), strict=True))
    unique = {end: short[end] for end in ends if end.isidentifier() and ends.count(end) == 1}
    own = {"app": app, "tasks": tasks, "operations": operations}
    own |= {"JobFilter": JobFilter, "JobSearch": JobSearch, "State": State}
    return {"__name__": "__console__", "__doc__": None} | unique | own


def _banner(app: Umbel, names: Mapping[str, Any]) -> str:
    own = [name for name in names if not name.startswith("__")]
    lines = textwrap.wrap(", ".join(own), _BANNER_WIDTH, subsequent_indent="  ")
    version = sys.version.partition(" ")[0]
    head = f"Umbel on {app.settings.public()['broker']}, Python {version}"
    return "\n".join([head, *lines, "Ctrl-D ends it. Example: operations.queues()"])


def _interact(names: dict[str, Any], banner: str) -> None:
    if find_spec("IPython") is None:
        _enable_completion(names)
        code.interact(banner, local=names, exitmsg="")
        return
    from IPython import start_ipython
    from traitlets.config import Config

    config = Config()
    config.TerminalInteractiveShell.banner1 = f"{banner}\n"
    start_ipython(argv=[], user_ns=names, config=config)


def _enable_completion(names: dict[str, Any]) -> None:
    """Let the prompt edit lines and complete names, if Python has readline."""
    try:
        import readline
        import rlcompleter
    except ImportError:
        return
    readline.set_completer(rlcompleter.Completer(names).complete)
    readline.parse_and_bind("tab: complete")


def _execute(text: str, name: str, names: dict[str, Any], as_json: bool) -> int:
    """Run code. An exception that is not Umbel's own ends it with its traceback."""
    try:
        program = compile(text.strip() if as_json else text, name, "eval" if as_json else "exec")
        value = eval(program, names)
        if as_json:
            print_json(value)
    except UmbelError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        own = error.__traceback__.tb_next if error.__traceback__ is not None else None
        traceback.print_exception(type(error), error, own)
        return FAILED
    return 0
