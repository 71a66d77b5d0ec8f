"""``umbel -A module:app COMMAND``: the root command, which loads a command's file when asked."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

import click

from umbel.cli.command_context import CommandContext
from umbel.cli.errors import (
    FAILED,
    tell,
    tell_bug,
    tell_bug_of_thread,
    tell_failure,
    tell_usage,
)
from umbel.errors import UmbelError
from umbel.observability.last_resort import configure_last_resort
from umbel.terminal import write
from umbel.urls import masked_url

COMMANDS = {
    "bench": "umbel.cli.bench",
    "completion": "umbel.cli.completion",
    "config": "umbel.cli.config",
    "db": "umbel.cli.db",
    "deploy": "umbel.cli.deploy",
    "dev": "umbel.cli.dev",
    "health": "umbel.cli.health",
    "jobs": "umbel.cli.jobs",
    "keys": "umbel.cli.keys",
    "limits": "umbel.cli.limits",
    "pause": "umbel.cli.control",
    "pools": "umbel.cli.pools",
    "routes": "umbel.cli.routes",
    "publisher": "umbel.cli.publisher",
    "queues": "umbel.cli.queues",
    "resume": "umbel.cli.control",
    "router": "umbel.cli.router",
    "send": "umbel.cli.send",
    "worker": "umbel.cli.worker",
    "workers": "umbel.cli.workers",
}
"""Every command and the module that holds it under its own name."""

SUMMARIES = {
    "bench": "Measure publishing, draining, latency and idle cost on this machine.",
    "completion": "Print the script that completes commands in your shell.",
    "config": "Show the settings and where each comes from.",
    "db": "Bring the database's schema up to date, or show its version.",
    "deploy": "Stop fetching, wait until workers may be restarted, resume; audit long tasks.",
    "dev": "Run everything here: a worker that reloads when your code changes.",
    "health": "Say whether work can flow: exit code 0, 1, or 3 for no server.",
    "jobs": "List, show, cancel, retry and forget jobs.",
    "keys": "Make, list, rotate and revoke keys that sign messages to one worker.",
    "limits": "Show limits and rates; set a limit.",
    "pause": "Start no more jobs: of a queue, of a task, at a gate, on a worker, or at all.",
    "pools": "Show pools and who holds what; add, remove and drain members.",
    "publisher": "Publish for other processes; show or publish what waits in the backlog.",
    "queues": "Show queues; empty or move one.",
    "resume": "Undo a pause.",
    "routes": "Show which worker has which key; release and move routes.",
    "router": "Serve workers and publishers that have no credentials of their own.",
    "send": "Publish a job, and wait for its result if you like.",
    "worker": "Run tasks until told to stop.",
    "workers": "Show the workers that live; retire one.",
}


class Commands(click.Group):
    """Knows every command's name and summary; imports its module when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        found = getattr(importlib.import_module(COMMANDS[name]), name)
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(SUMMARIES.items()))


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from umbel import __version__

        write(sys.stdout, f"umbel {__version__}")
        ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-A",
    "--app",
    "address",
    envvar="UMBEL_APP",
    metavar="MODULE[:APP]",
    help="Where the application is; also UMBEL_APP. The name after the colon is 'app' by default.",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_version,
    help="Print the version.",
)
@click.pass_context
def cli(ctx: click.Context, address: str | None) -> None:
    """Umbel runs Python functions as background jobs.

    Exit codes: 0 fine, 1 it failed or was not found, 2 the command was not understood,
    3 the server cannot be reached, 4 somebody else deploys.
    """
    ctx.obj = CommandContext(address)


def main() -> None:
    """The command line; ends the process with its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open to the end
    sys.excepthook = tell_bug
    threading.excepthook = tell_bug_of_thread
    configure_last_resort()
    sys.exit(run(sys.argv[1:]))


def run(words: Sequence[str]) -> int:
    """Run one command; returns its exit code. Nothing but a bug comes out as a traceback."""
    as_json = "--json" in words[: words.index("--")] if "--" in words else "--json" in words
    stdout = sys.stdout
    try:
        _check(words)
        code = cli.main(list(words), prog_name="umbel", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        return tell_usage(error, as_json=as_json)
    except UmbelError as error:
        return tell(error, as_json=as_json)
    except (click.Abort, KeyboardInterrupt):
        write(sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone (``umbel jobs list | head``): nothing to tell anybody.
        _write_no_more()
        return 0
    except SystemExit:
        if sys.stdout is stdout:
            raise
        _write_no_more()  # click noticed it first, and has put a quiet stream there
        return 0
    except OSError as error:
        _write_no_more()
        tell_failure(error, as_json=as_json)
        return FAILED
    return code if isinstance(code, int) else 0


def _check(words: Sequence[str]) -> None:
    """Refuse words that nothing could store or print. Raises UsageError."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise click.UsageError(
                f"{ascii(masked_url(word))[:80]} is not text in UTF-8."
            ) from None


def _write_no_more() -> None:
    """What is still in the buffer goes nowhere, so that Python does not try it again."""
    with suppress(OSError):  # a stream without a file has nothing to try
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
