"""Reads the arguments of a task from words on the command line."""

from __future__ import annotations

import inspect
import re
import typing
from typing import Any

import click
import msgspec

from umbel.errors import BadArguments, BadMessage
from umbel.messages import MessageType, decode_as, fresh_id
from umbel.tasks import Task
from umbel.tasks.workflow import Workflow

Callee = Task[..., Any] | Workflow[..., Any]
_KEY = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


class Word(msgspec.Struct, frozen=True):
    """One argument: its text, and its value as JSON."""

    text: str
    value: Any


class Call(msgspec.Struct, frozen=True):
    """Positional and keyword arguments, not yet converted for a task."""

    args: list[Word]
    kwargs: dict[str, Word]


def parse(words: list[str], kwargs: str | None) -> Call:
    """Return the call that words and a JSON object describe. Raises UsageError."""
    call = Call([], {name: _written(value) for name, value in _object(kwargs).items()})
    for word in words:
        keyed = _KEY.fullmatch(word)
        if keyed is None:
            call.args.append(_word(word))
        else:
            call.kwargs[keyed[1]] = _word(keyed[2])
    return call


def _object(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise click.UsageError(
            f"--kwargs: {error}; give a JSON object, as in --kwargs '{{\"a\": 1}}'"
        ) from None
    return found


def _word(text: str) -> Word:
    try:
        return Word(text, msgspec.json.decode(text))
    except (msgspec.MsgspecError, RecursionError):
        return Word(text, text)


def _written(value: Any) -> Word:
    return Word(msgspec.json.encode(value).decode(), value)


# --- converted for a task ---------------------------------------------------------------------


def fit_to_task(task: Callee, call: Call) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments, converted to the types of the task's annotations.

    Raises:
        BadArguments: one cannot be converted; the text names it.
    """
    parameters = list(task.parameters.signature.parameters.values())
    positional = [
        p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "")
    extra = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), "")
    hints = _hints(task)
    names = [positional[i] if i < len(positional) else rest for i in range(len(call.args))]
    args = [_fit(task, n, w, hints.get(n, Any)) for n, w in zip(names, call.args, strict=True)]
    kwargs = {
        name: _fit(task, name, word, hints.get(name, hints.get(extra, Any)))
        for name, word in call.kwargs.items()
    }
    return args, kwargs


def _fit(task: Callee, name: str, word: Word, hint: Any) -> Any:
    if hint is Any or hint is inspect.Parameter.empty:
        return word.value
    try:
        return decode_as(word.value, hint, name)
    except BadMessage as error:
        try:
            return decode_as(word.text, hint, name)
        except BadMessage:
            raise BadArguments(
                f"{task.name}{task.parameters.signature}: {word.text!r} for {error}"
            ) from None


def _hints(task: Callee) -> dict[str, Any]:
    try:
        return typing.get_type_hints(task.function)
    except Exception:  # noqa: BLE001 - annotations are arbitrary expressions
        return {}


# --- for a task that is not registered here-----------------------------------------------------


def build_cloudevent(name: str, call: Call, options: dict[str, Any]) -> bytes:
    """Return the call as a CloudEvent in JSON."""
    event = {
        "specversion": "1.0",
        "id": fresh_id(),
        "type": MessageType.COMMAND.value,
        "source": "/umbel/cli",
        "subject": name,
        "data": {
            "args": [word.value for word in call.args],
            "kwargs": {key: word.value for key, word in call.kwargs.items()},
        },
        "queue": options.get("queue", "default"),
        "priority": options.get("priority", 0),
    }
    for option, attribute in (("delay", "notbefore"), ("expires", "expiry")):
        if option in options:
            event[attribute] = _duration(option, options[option])
    if "unique" in options:
        event["uniquekey"] = options["unique"]
    return msgspec.json.encode(event)


def _duration(option: str, seconds: float) -> str:
    """Return seconds as an ISO 8601 duration, which the store adds to its own time."""
    if not 0 <= seconds < 1e10:
        raise click.UsageError(f"--{option} {seconds:g}: give seconds from 0 to 9999999999.")
    return f"PT{seconds:.6f}S"
