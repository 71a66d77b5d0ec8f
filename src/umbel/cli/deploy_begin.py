"""``umbel deploy begin``: waits for "go", shows what it waits for, and resumes if it is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from umbel.cli.deploy_report import print_runs, run_text
from umbel.cli.formatting import count, duration
from umbel.cli.output import on_terminal, print_line
from umbel.control import DeploymentPlan
from umbel.errors import UmbelError
from umbel.operations import DeployView, Operations
from umbel.operations.deployments import DEPLOYMENT_LEASE_SECONDS
from umbel.processes.exit_codes import FAILED
from umbel.terminal import make_visible

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MAX_SHOWN_RUNS = 12
_MIN_REPORT_SECONDS = 1.0
_RESUME_TIMEOUT_SECONDS = 5.0


class WaitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command."""

    plan: DeploymentPlan
    interval: float
    limit: float
    force: bool
    quiet: bool


async def wait_for_go(operations: Operations, options: WaitOptions) -> tuple[DeployView, int]:
    """Wait for "go", the time limit or a signal; return the last view and the exit code.

    Raises:
        DeploymentUnderWay, DeploymentLost: see ``DeploymentOperations``. Unavailable: for too long.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    signals: list[int] = []

    def on_signal(number: int) -> None:
        signals.append(number)
        stop.set()

    for number in _STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            loop.add_signal_handler(number, on_signal, number)
    work = asyncio.ensure_future(_wait(operations, options))
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
    except BaseException:
        await _stop(work)
        await _resume(operations, options, "the command was stopped")
        raise
    finally:
        stopped.cancel()
    if work.done():
        return work.result()
    await _stop(work)
    if not work.cancelled():  # it ended just before
        return work.result()
    name = signal.Signals(signals[0]).name
    view = await _resume(operations, options, f"stopped by {name}")
    return view, 128 + signals[0]


async def _wait(operations: Operations, options: WaitOptions) -> tuple[DeployView, int]:
    begun = await operations.deploy.begin(options.plan, force=options.force)
    display = Display(options)
    try:
        with display:
            view = await operations.deploy.wait(
                begun, interval=options.interval, limit=options.limit, show=display.show
            )
    except Exception:  # workers must not stay paused after any error
        await _resume(operations, options, "the command failed")
        raise
    go = view.deployment is not None and view.deployment.state == "go"
    if not options.quiet:
        _print_safely(_print_go if go else _print_gave_up, view)
    return view, 0 if go else FAILED


def _print_safely(print_view: Callable[[DeployView], None], view: DeployView) -> None:
    """Print a view. A closed stdout must not change the exit code."""
    try:
        print_view(view)
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _stop(work: asyncio.Future[Any]) -> None:
    work.cancel()
    with suppress(BaseException):
        await work


async def _resume(operations: Operations, options: WaitOptions, why: str) -> DeployView:
    """End the pauses and print the result; errors are printed, too."""
    ended, problem = None, ""
    try:
        async with asyncio.timeout(_RESUME_TIMEOUT_SECONDS):
            ended = await operations.deploy.abort(options.plan.id, why)
    except (UmbelError, TimeoutError) as error:
        problem = str(error) or "no answer"

    def print_result(view: DeployView) -> None:
        if problem:
            print_line(f"The workers could not be resumed: {problem}.")
            print_line(
                f"They resume within {duration(DEPLOYMENT_LEASE_SECONDS)} after the server is back."
            )
        elif ended is not None:
            print_line(f"{why}; workers fetch again after {duration(ended.stood)}")

    if not options.quiet:
        _print_safely(print_result, DeployView(deployment=ended))
    return DeployView(deployment=ended)


def _print_go(view: DeployView) -> None:
    running = [one for one in view.workers if not one.lapsed]
    left = [run for one in running for run in one.runs]
    who = count(len(running), "worker")
    if not running:
        print_line("go: no workers are running")
    elif left:
        print_line(f"go: {who} paused; {count(len(left), 'interruptible task')} still running:")
        print_runs([(one, run) for one in running for run in one.runs])
    else:
        print_line(f"go: {who} idle, fetching no jobs")
    for one in view.workers:
        if one.lapsed:
            print_line(
                f"{one.name} (process {one.pid} on {one.host}) has no heartbeat; not counted"
            )
    stood = view.deployment.stood if view.deployment is not None else 0.0
    print_line(f"Fetching has been paused for {duration(stood)}. To resume: umbel deploy end")


def _print_gave_up(view: DeployView) -> None:
    stood = view.deployment.stood if view.deployment is not None else 0.0
    print_line(f"Not ready after {duration(stood)}. Workers fetch again. Do not deploy now.")
    for one in view.unconfirmed:
        print_line(
            f"{one.name} (process {one.pid} on {one.host}) has not answered,"
            f" last heartbeat {duration(one.silent)} ago"
        )
    if view.blocking_runs:
        print_line("Still running and not interruptible:")
        print_runs(view.blocking_runs)
        print_line("To find tasks that run too long: umbel deploy audit")


class Display:
    """Shows what the command waits for: live on a terminal, otherwise as lines at changes."""

    def __init__(self, options: WaitOptions) -> None:
        self._options = options
        self._live: Any = None
        self._reported: object = None
        self._reported_at = 0.0

    def __enter__(self) -> None:
        plan = self._options.plan
        if self._options.quiet:
            return
        self._reported_at = asyncio.get_running_loop().time()
        what = ", ".join(f"{scope} {name}".strip() for scope, name in plan.pauses())
        why = f" ({plan.reason})" if plan.reason else ""
        print_line(f"deployment by {plan.who}{why}: {what} paused, waiting for workers")
        if on_terminal():
            from rich.live import Live

            self._live = Live(auto_refresh=False, transient=True)
            self._live.start()

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, view: DeployView) -> None:
        if not self._options.quiet:
            _print_safely(self._show, view)

    def _show(self, view: DeployView) -> None:
        lines = _lines(view)
        if self._live is not None:
            from rich.text import Text

            self._live.update(
                Text("\n".join(make_visible(line, lines=False) for line in lines)), refresh=True
            )
            return
        now = asyncio.get_running_loop().time()
        changed = self._reported != (summary := _summary(view))
        if now - self._reported_at >= (_MIN_REPORT_SECONDS if changed else self._options.interval):
            self._reported, self._reported_at = summary, now
            for line in lines:
                print_line(line)


def _summary(view: DeployView) -> object:
    runs = tuple(run.job for _, run in view.blocking_runs)
    return tuple(one.incarnation for one in view.unconfirmed), runs


def _lines(view: DeployView) -> list[str]:
    """Return lines about what the command waits for, the longest run first."""
    left = view.deployment.stood if view.deployment is not None else 0.0
    lines = [f"after {duration(left)}:"]
    lines += [
        f"  {one.name} (process {one.pid} on {one.host}) has not answered yet,"
        f" last heartbeat {duration(one.silent)} ago"
        for one in view.unconfirmed
    ]
    runs = view.blocking_runs
    lines += [run_text(one, run) for one, run in runs[:_MAX_SHOWN_RUNS]]
    if len(runs) > _MAX_SHOWN_RUNS:
        lines.append(f"  and {len(runs) - _MAX_SHOWN_RUNS} more")
    interruptible = sum(run.interruptible for one in view.workers for run in one.runs)
    if interruptible:
        lines.append(f"  {count(interruptible, 'interruptible task')} running, not waited for")
    return lines
