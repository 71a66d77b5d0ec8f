"""``umbel deploy begin``: waits for "go", shows what is in the way, resumes when it is ended."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from umbel.backends import DeploymentPlan
from umbel.cli.answers import on_terminal, say
from umbel.cli.errors import FAILED
from umbel.cli.standing import run_line, say_runs
from umbel.cli.words import count, duration
from umbel.errors import UmbelError
from umbel.operations import DeployView, Operations
from umbel.operations.deploying import LEASE
from umbel.terminal import visible

_ENDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHOWN = 12
_SOONEST = 1.0
_LAST_WORD = 5.0


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """How to wait."""

    plan: DeploymentPlan
    interval: float
    limit: float
    force: bool
    quiet: bool


async def waited(operations: Operations, how: Waiting) -> tuple[DeployView, int]:
    """Until it is go, given up or ended by a signal; the exit code of that.

    Raises:
        DeploymentUnderWay, DeploymentLost: see ``Deploys``. Unavailable: for too long.
    """
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    signals: list[int] = []

    def hear(number: int) -> None:
        signals.append(number)
        told.set()

    for number in _ENDED:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            loop.add_signal_handler(number, hear, number)
    work = asyncio.ensure_future(_wait(operations, how))
    ended = asyncio.ensure_future(told.wait())
    try:
        await asyncio.wait([work, ended], return_when=asyncio.FIRST_COMPLETED)
    except BaseException:
        await _stop(work)
        await _resume(operations, how, "the command was ended")
        raise
    finally:
        ended.cancel()
    if work.done():
        return work.result()
    await _stop(work)
    if not work.cancelled():  # it was just about to end by itself
        return work.result()
    name = signal.Signals(signals[0]).name
    view = await _resume(operations, how, f"ended by {name}")
    return view, 128 + signals[0]


async def _wait(operations: Operations, how: Waiting) -> tuple[DeployView, int]:
    begun = await operations.deploy.begin(how.plan, force=how.force)
    display = Display(how)
    try:
        with display:
            view = await operations.deploy.wait(
                begun, interval=how.interval, limit=how.limit, show=display.show
            )
    except Exception:  # whatever it is, workers must not stand still for it
        await _resume(operations, how, "the command failed")
        raise
    go = view.deployment is not None and view.deployment.state == "go"
    if not how.quiet:
        _tell(_say_go if go else _say_given_up, view)
    return view, 0 if go else FAILED


def _tell(say_it: Callable[[DeployView], None], view: DeployView) -> None:
    """Say it if anybody still reads; whoever does not must not change the exit code."""
    try:
        say_it(view)
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _stop(work: asyncio.Future[Any]) -> None:
    work.cancel()
    with suppress(BaseException):
        await work


async def _resume(operations: Operations, how: Waiting, why: str) -> DeployView:
    """Lift the pauses, whatever else is wrong, and say so if anybody still listens."""
    ended, trouble = None, ""
    try:
        async with asyncio.timeout(_LAST_WORD):
            ended = await operations.deploy.abort(how.plan.id, why)
    except (UmbelError, TimeoutError) as error:
        trouble = str(error) or "no answer"

    def say_it(view: DeployView) -> None:
        if trouble:
            say(f"the workers could not be told to resume: {trouble}")
            say(f"they do so by themselves within {duration(LEASE)} of the server's return")
        elif ended is not None:
            say(f"{why}; workers fetch again, after {duration(ended.stood)}")

    if not how.quiet:
        _tell(say_it, DeployView(deployment=ended))
    return DeployView(deployment=ended)


def _say_go(view: DeployView) -> None:
    living = [one for one in view.workers if not one.lapsed]
    left = [run for one in living for run in one.runs]
    who = count(len(living), "worker")
    if not living:
        say("go: no worker lives")
    elif left:
        say(f"go: {who} fetching nothing; {count(len(left), 'interruptible task')} still running:")
        say_runs([(one, run) for one in living for run in one.runs])
    else:
        say(f"go: {who} idle and fetching nothing")
    for one in view.workers:
        if one.lapsed:
            say(f"{one.name} (process {one.pid} on {one.host}) has not been heard of: not counted")
    stood = view.deployment.stood if view.deployment is not None else 0.0
    say(f"paused for {duration(stood)} by now, and until: umbel deploy end")


def _say_given_up(view: DeployView) -> None:
    stood = view.deployment.stood if view.deployment is not None else 0.0
    say(f"not ready after {duration(stood)}; workers fetch again. Do not deploy now.")
    for one in view.silent:
        say(
            f"{one.name} (process {one.pid} on {one.host}) has not answered,"
            f" last beat {duration(one.silent)} ago"
        )
    if view.in_the_way:
        say("still running, and not interruptible:")
        say_runs(view.in_the_way)
        say("which tasks are too long: umbel deploy audit")


class Display:
    """What is in the way: live on a terminal, else a line when it changes and now and then."""

    def __init__(self, how: Waiting) -> None:
        self._how = how
        self._live: Any = None
        self._said: object = None
        self._at = 0.0

    def __enter__(self) -> None:
        plan = self._how.plan
        if self._how.quiet:
            return
        self._at = asyncio.get_running_loop().time()  # what ends within a moment is no news
        what = ", ".join(f"{scope} {name}".strip() for scope, name in plan.pauses())
        why = f" ({plan.reason})" if plan.reason else ""
        say(f"deployment by {plan.who}{why}: {what} paused, waiting for workers")
        if on_terminal():
            from rich.live import Live

            self._live = Live(auto_refresh=False, transient=True)
            self._live.start()

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, view: DeployView) -> None:
        if not self._how.quiet:
            _tell(self._show, view)

    def _show(self, view: DeployView) -> None:
        lines = _lines(view)
        if self._live is not None:
            from rich.text import Text

            self._live.update(
                Text("\n".join(visible(line, lines=False) for line in lines)), refresh=True
            )
            return
        now = asyncio.get_running_loop().time()
        changed = self._said != (said := _gist(view))
        if now - self._at >= (_SOONEST if changed else self._how.interval):
            self._said, self._at = said, now
            for line in lines:
                say(line)


def _gist(view: DeployView) -> object:
    runs = tuple(run.job for _, run in view.in_the_way)
    return tuple(one.incarnation for one in view.silent), runs


def _lines(view: DeployView) -> list[str]:
    """What is waited for, the longest first."""
    left = view.deployment.stood if view.deployment is not None else 0.0
    lines = [f"after {duration(left)}:"]
    lines += [
        f"  {one.name} (process {one.pid} on {one.host}) has not answered yet,"
        f" last beat {duration(one.silent)} ago"
        for one in view.silent
    ]
    runs = view.in_the_way
    lines += [run_line(one, run) for one, run in runs[:_SHOWN]]
    if len(runs) > _SHOWN:
        lines.append(f"  and {len(runs) - _SHOWN} more")
    calm = sum(run.interruptible for one in view.workers for run in one.runs)
    if calm:
        lines.append(f"  {count(calm, 'interruptible task')} running, not waited for")
    return lines
