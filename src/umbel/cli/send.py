"""``umbel send TASK ARGS…``: publishes a job and, with ``--wait``, waits for its result."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from umbel.app import Umbel
from umbel.cli import job_details
from umbel.cli.arguments import Call, build_cloudevent, fit_to_task, parse
from umbel.cli.command_context import Command, CommandContext, command
from umbel.cli.output import print_json, print_line, print_note
from umbel.cli.short_names import find_task_name, parse_worker
from umbel.errors import ResultTimeout, UmbelError, UnknownJob
from umbel.messages import Record, State
from umbel.operations import Operations, job_document
from umbel.processes.exit_codes import FAILED
from umbel.publisher import log_event
from umbel.tasks import Handle
from umbel.telemetry import events

_FOREVER = float("inf")
_NOTE_DELAY_SECONDS = 1.0
"""After so long, a caller that waits is told why the job does not start."""


class SendCommand(Command):
    """A command that takes negative numbers as arguments, and ``--wait`` without a number."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(self._prepared(args)))

    def _prepared(self, args: list[str]) -> Iterator[str]:
        options = [p for p in self.params if isinstance(p, click.Option)]
        valued = {name for p in options if not p.is_flag for name in p.opts} - {"--wait"}
        words = iter(enumerate(args))
        for place, word in words:
            following = args[place + 1] if place + 1 < len(args) else ""
            if word == "--":
                yield from args[place:]
                return
            if word in valued:
                yield word
                yield from (word for _, word in [next(words, (0, ""))] if place + 1 < len(args))
            elif word == "--wait":
                yield f"--wait={following if _is_number(following) else _FOREVER}"
                if _is_number(following):
                    next(words)
            else:
                yield f"\0{word}" if _is_number(word) else word


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return word[-1:].isdigit() or word.endswith(".")


@command(cls=SendCommand)
@click.argument("task", required=False)
@click.argument("words", metavar="[ARGS | KEY=VALUE]…", nargs=-1)
@click.option("--kwargs", metavar="JSON", help="Keyword arguments as a JSON object.")
@click.option("--queue", help="Put the job into this queue instead of the task's own.")
@click.option("--worker", metavar="INDEX|NAME", help="Run the job on this worker only.")
@click.option("--priority", type=int, help="Jobs with a higher priority run first.")
@click.option(
    "--delay", type=float, metavar="SECONDS", help="Start the job after this many seconds."
)
@click.option(
    "--expires", type=float, metavar="SECONDS", help="Do not start the job after this many seconds."
)
@click.option("--unique", metavar="KEY", help="Publish only if no live job has this key.")
@click.option("--wait", type=float, metavar="[SECONDS]", help="Wait for the result and print it.")
@click.option(
    "--cloudevent", metavar="FILE|-", help="Publish this CloudEvent in JSON instead of TASK."
)
def send(
    context: CommandContext,
    task: str | None,
    words: tuple[str, ...],
    kwargs: str | None,
    wait: float | None,
    cloudevent: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Publish a job of TASK and print its id.

    Each argument is read as JSON if it is JSON, otherwise as text, and converted to the type that
    the task declares: a str parameter gets "12" for 12. To send a text such as a=b, quote it:
    '"a=b"'.

    \b
    umbel -A tasks send add 1 2 --wait
    umbel -A tasks send send_mail user_id=7 email=a@b.c --delay 60
    """
    if (task is None) == (cloudevent is None):
        raise click.UsageError("give a TASK, or --cloudevent FILE.")
    if wait is not None and wait != wait:  # NaN
        raise click.UsageError("--wait: give seconds, or no value to wait until the job ends.")
    app = context.app_or_bare
    chosen = {name: value for name, value in options.items() if value is not None}
    if "worker" in chosen:
        chosen["worker"] = parse_worker(chosen["worker"])
    if cloudevent is not None:
        if words or kwargs or chosen:
            raise click.UsageError(
                "--cloudevent takes no arguments or job options: they are in the event."
            )
        publish = _from_event(app, cloudevent)
    else:
        assert task is not None
        plain = [word.removeprefix("\0") for word in words]
        publish = _from_words(app, task.removeprefix("\0"), parse(plain, kwargs), chosen)
    try:
        return _report(context, publish, wait, as_json)
    finally:
        with suppress(UmbelError, TimeoutError):
            app.close()


def _from_event(app: Umbel, place: str) -> Handle[Any]:
    try:
        data = sys.stdin.buffer.read() if place == "-" else Path(place).read_bytes()
    except OSError as error:
        raise click.UsageError(f"--cloudevent {place}: {error.strerror}") from None
    return app.publish_event(data)


def _from_words(app: Umbel, name: str, call: Call, options: dict[str, Any]) -> Handle[Any]:
    if not len(app.registry):
        # Without an application the task is unknown here; its worker checks the arguments.
        if "worker" in options:
            raise click.UsageError("--worker needs the application: give -A module:app.")
        return app.publish_event(build_cloudevent(name, call, options))
    task = app.registry.find(find_task_name(app.registry, name))
    args, kwargs = fit_to_task(task, call)
    return task.options(**options).delay(*args, **kwargs)


# --- waiting ---------------------------------------------------------------------------------


def _report(context: CommandContext, handle: Handle[Any], wait: float | None, as_json: bool) -> int:
    app = context.app_or_bare
    if wait is None:
        if as_json:
            print_json({"id": handle.id})
        else:
            print_line(handle.id)
        return 0
    if not as_json:
        print_note(f"{handle.id}: waiting; Ctrl-C does not stop the job.")
    app.telemetry.subscribe(_log_other_events, "warning")
    explain = None if as_json else lambda: _print_hindrances(context, handle.id)
    record = _finished(handle, wait, explain)
    if record is None:
        print_json({"id": handle.id, "state": "succeeded"}) if as_json else print_line("succeeded")
        return 0
    if as_json:
        print_json(job_document(record, app.codec))
    elif record.state is State.SUCCEEDED:
        print_line(job_details.result_text(record, app.codec))
    else:
        print_note(job_details.failure_text(record))
    return 0 if record.state is State.SUCCEEDED else FAILED


def _log_other_events(event: events.Event) -> None:
    """Log an event as a program without subscribers does, except what this command prints."""
    if not isinstance(event, events.JobNotStarting):
        log_event(event)


def _print_hindrances(context: CommandContext, job: str) -> None:
    """Print why a job does not start, if that is known. The caller continues to wait."""

    async def work(operations: Operations) -> list[str]:
        record = await operations.job(job)
        return await operations.hindrances(record, context.address or "MODULE:APP")

    with suppress(UmbelError):
        for reason in context.run(work):
            print_note(reason)


def _finished(
    handle: Handle[Any], wait: float, explain: Callable[[], None] | None
) -> Record | None:
    """Return the final record; None if the task keeps no records of its successes.

    ``explain`` is called once if the job has not ended after a second.

    Raises:
        ResultTimeout: the job did not end within ``wait`` seconds.
    """
    started = time.monotonic()
    try:
        if explain is None or wait <= _NOTE_DELAY_SECONDS or not _ends_soon(handle, explain):
            left = max(0.0, wait - (time.monotonic() - started))
            handle.get(timeout=None if wait == _FOREVER else left)
    except ResultTimeout:
        if explain is None or wait <= _NOTE_DELAY_SECONDS:
            raise
        # The error would name only the time after the first second.
        raise ResultTimeout(f"job {handle.id} has not finished within {wait:g} s") from None
    except Exception:  # noqa: BLE001 - raised by the task; the record below has it
        pass
    try:
        return handle.record()
    except UnknownJob:
        return None


def _ends_soon(handle: Handle[Any], explain: Callable[[], None]) -> bool:
    """Return whether the job ends within a second; otherwise call ``explain``. Raises its error."""
    try:
        handle.get(timeout=_NOTE_DELAY_SECONDS)
    except ResultTimeout:
        explain()
        return False
    return True
