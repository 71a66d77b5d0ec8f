"""``umbel -A module:app COMMAND``: the root command, which imports a command when it is used."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

import click

from umbel.cli.command_context import CommandContext, SuggestingGroup
from umbel.cli.errors import (
    report_bug,
    report_error,
    report_os_error,
    report_thread_bug,
    report_usage_error,
)
from umbel.errors import UmbelError
from umbel.observability.last_resort import configure_last_resort
from umbel.processes.exit_codes import FAILED
from umbel.terminal import write
from umbel.urls import mask_url

COMMANDS = {
    "bench": "umbel.cli.bench",
    "completion": "umbel.cli.completion",
    "config": "umbel.cli.config",
    "dashboard": "umbel.cli.dashboard",
    "db": "umbel.cli.db",
    "deploy": "umbel.cli.deploy",
    "dev": "umbel.cli.dev",
    "graphs": "umbel.cli.graphs",
    "health": "umbel.cli.health",
    "jobs": "umbel.cli.jobs",
    "keys": "umbel.cli.keys",
    "limits": "umbel.cli.limits",
    "pause": "umbel.cli.control",
    "pools": "umbel.cli.pools",
    "routes": "umbel.cli.routes",
    "publisher": "umbel.cli.publisher",
    "purge-namespace": "umbel.cli.purge_namespace",
    "queues": "umbel.cli.queues",
    "resume": "umbel.cli.control",
    "router": "umbel.cli.router",
    "schedules": "umbel.cli.schedules",
    "send": "umbel.cli.send",
    "shell": "umbel.cli.shell",
    "tasks": "umbel.cli.tasks",
    "top": "umbel.cli.top",
    "worker": "umbel.cli.worker",
    "workers": "umbel.cli.workers",
    "workflows": "umbel.cli.workflows",
}
"""Every command and its module, where a variable has the same name, with underscores."""

SUMMARIES = {
    "bench": "Measure throughput, latency and idle cost on this machine.",
    "completion": "Print the script that completes commands in your shell.",
    "config": "Show the settings and the origin of each.",
    "dashboard": "Serve web pages and an HTTP interface for operators.",
    "db": "Bring the database schema up to date, or show its version.",
    "deploy": "Pause fetching until workers can be restarted; audit long tasks.",
    "dev": "Run everything here: a dashboard, and a worker that reloads when your code changes.",
    "graphs": "Show, draw, retry, resolve and cancel graphs: canvases, runs of workflows.",
    "health": "Check that the server, the workers and the queues are healthy.",
    "jobs": "List, show, cancel, retry, edit and delete jobs.",
    "keys": "Make, rotate and revoke keys that sign messages to one worker.",
    "limits": "Show limits and rates; set a limit.",
    "pause": "Stop starting jobs of a queue, a task, a gate, a worker, or all.",
    "pools": "Show pools and holders; add, remove and drain members.",
    "publisher": "Publish for other processes; show or publish the backlog.",
    "purge-namespace": "Delete everything that belongs to a namespace.",
    "queues": "Show queues; empty or move one.",
    "resume": "End a pause.",
    "routes": "Show which worker has which key; release and move routes.",
    "router": "Serve workers and publishers that have no credentials.",
    "schedules": "Show schedules and their next times; add, edit, pause, trigger.",
    "send": "Publish a job; optionally wait for its result.",
    "shell": "Start a Python prompt with the application, its tasks and operations.",
    "tasks": "Show tasks: their options, run times and workers.",
    "top": "Show queues, workers and tasks live in a terminal, with keys that act.",
    "worker": "Run tasks until the worker is stopped.",
    "workers": "Show running workers; send a command to one.",
    "workflows": "Show declared workflows and their runs; start one, give a signal.",
}


class Commands(SuggestingGroup):
    """Lists every command with its summary, and imports the module of the one that is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        found = getattr(importlib.import_module(COMMANDS[name]), name.replace("-", "_"))
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
    help="The application; also UMBEL_APP. The default name after the colon is 'app'.",
)
@click.option(
    "--config",
    envvar="UMBEL_CONFIG",
    metavar="FILE",
    help="The configuration file; also UMBEL_CONFIG. Default: umbel.toml in the current folder.",
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
def cli(ctx: click.Context, address: str | None, config: str | None) -> None:
    """Umbel runs Python functions as background jobs.

    Exit codes: 0 success, 1 failed or not found, 2 wrong usage or configuration,
    3 the server cannot be reached, 4 another deployment is in progress.
    """
    if config is not None:
        if not config.strip():
            raise click.UsageError("--config is empty (an unset variable?): give a file.", ctx)
        os.environ["UMBEL_CONFIG"] = config  # also for child processes
    ctx.obj = CommandContext(address)


def main() -> None:
    """Run the command line and end the process with its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - stays open
    sys.excepthook = report_bug
    threading.excepthook = report_thread_bug
    configure_last_resort()
    sys.exit(run(sys.argv[1:]))


def run(words: Sequence[str]) -> int:
    """Run one command and return its exit code. Only a bug is raised as an exception."""
    as_json = "--json" in words[: words.index("--")] if "--" in words else "--json" in words
    stdout = sys.stdout
    try:
        _check_encoding(words)
        code = cli.main(list(words), prog_name="umbel", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        return report_usage_error(error, as_json=as_json)
    except UmbelError as error:
        return report_error(error, as_json=as_json)
    except (click.Abort, KeyboardInterrupt):
        write(sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has ended, as in ``umbel jobs list | head``.
        _discard_stdout()
        return 0
    except SystemExit:
        if sys.stdout is stdout:
            raise
        _discard_stdout()  # click saw the broken pipe first and replaced the stream
        return 0
    except OSError as error:
        _discard_stdout()
        report_os_error(error, as_json=as_json)
        return FAILED
    return code if isinstance(code, int) else 0


def _check_encoding(words: Sequence[str]) -> None:
    """Raise UsageError for a word that cannot be stored or printed."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise click.UsageError(f"{ascii(mask_url(word))[:80]} is not text in UTF-8.") from None


def _discard_stdout() -> None:
    """Send what is still in the buffer to /dev/null, so that Python does not try to write it."""
    with suppress(OSError):  # a stream without a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
