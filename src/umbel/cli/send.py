"""``umbel send TASK ARGS…``: publish a job, and wait for its result if asked to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from umbel.app import Umbel
from umbel.cli import story
from umbel.cli.answers import answer, note, say
from umbel.cli.arguments import Call, as_event, parse, typed
from umbel.cli.command_context import Command, CommandContext, command
from umbel.cli.errors import FAILED
from umbel.cli.names import full_name, worker_named
from umbel.errors import ResultTimeout, UmbelError, UnknownJob
from umbel.messages import Record, State
from umbel.tasks import Handle

_EVER = float("inf")


class SendCommand(Command):
    """Lets negative numbers be arguments, and ``--wait`` stand without a number."""

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
                yield f"--wait={following if _is_number(following) else _EVER}"
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
@click.option("--queue", help="Into this queue instead of the task's own.")
@click.option("--worker", metavar="INDEX|NAME", help="Let this worker run it, and no other.")
@click.option("--priority", type=int, help="Higher runs first.")
@click.option("--delay", type=float, metavar="SECONDS", help="Not before so many seconds.")
@click.option("--expires", type=float, metavar="SECONDS", help="Not started after so many.")
@click.option("--unique", metavar="KEY", help="Only if no live job holds this key.")
@click.option("--wait", type=float, metavar="[SECONDS]", help="Wait for the result and print it.")
@click.option(
    "--cloudevent", metavar="FILE|-", help="Publish a CloudEvent in JSON, instead of TASK."
)
def send(
    frame: CommandContext,
    task: str | None,
    words: tuple[str, ...],
    kwargs: str | None,
    wait: float | None,
    cloudevent: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Publish a job of TASK and print its id.

    Each argument is read as JSON where it is JSON, else as text, and fitted to the task's
    annotations: a str parameter given 12 gets "12". To send text like a=b, quote it: '"a=b"'.

    \b
    umbel -A tasks send add 1 2 --wait
    umbel -A tasks send send_mail user_id=7 email=a@b.c --delay 60
    """
    if (task is None) == (cloudevent is None):
        raise click.UsageError("give a TASK, or --cloudevent FILE.")
    if wait is not None and wait != wait:  # not a number: neither ever nor a time
        raise click.UsageError("--wait: give seconds, or nothing to wait until it is done.")
    app = frame.app_or_bare
    chosen = {name: value for name, value in options.items() if value is not None}
    if "worker" in chosen:
        chosen["worker"] = worker_named(chosen["worker"])
    if cloudevent is not None:
        if words or kwargs or chosen:
            raise click.UsageError("--cloudevent: everything else is in the event itself.")
        publish = _from_event(app, cloudevent)
    else:
        assert task is not None
        plain = [word.removeprefix("\0") for word in words]
        publish = _from_words(app, task.removeprefix("\0"), parse(plain, kwargs), chosen)
    try:
        return _report(app, publish, wait, as_json)
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
        # Without an application nobody here knows the task; whoever runs it will judge the call.
        return app.publish_event(as_event(name, call, options))
    task = app.registry.find(full_name(app.registry, name))
    args, kwargs = typed(task, call)
    return task.options(**options).delay(*args, **kwargs)


# --- waiting ---------------------------------------------------------------------------------


def _report(app: Umbel, handle: Handle[Any], wait: float | None, as_json: bool) -> int:
    if wait is None:
        if as_json:
            answer({"id": handle.id})
        else:
            say(handle.id)
        return 0
    if not as_json:
        note(f"{handle.id}: waiting; Ctrl-C ends the waiting, not the job")
    record = _finished(handle, wait)
    if record is None:
        answer({"id": handle.id, "state": "succeeded"}) if as_json else say("succeeded")
        return 0
    if as_json:
        answer(story.view(record, app.codec))
    elif record.state is State.SUCCEEDED:
        say(story.result_text(record, app.codec))
    else:
        note(story.failure_text(record))
    return 0 if record.state is State.SUCCEEDED else FAILED


def _finished(handle: Handle[Any], wait: float) -> Record | None:
    """The final record; None when the task keeps none of its successes.

    Raises:
        ResultTimeout: not within ``wait`` seconds.
    """
    try:
        handle.get(timeout=None if wait == _EVER else wait)
    except ResultTimeout:
        raise
    except Exception:  # noqa: BLE001 - the task's own; the record below tells it
        pass
    try:
        return handle.record()
    except UnknownJob:
        return None
