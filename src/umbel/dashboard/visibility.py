"""What of a job a user sees: names for arguments, masked fields, and text that is safe to show."""

from __future__ import annotations

import re
from collections.abc import Collection
from inspect import Parameter, Signature
from typing import Any

import msgspec

from umbel.control import User
from umbel.messages import BodyCodec, Failure, Record
from umbel.operations import job_document
from umbel.tasks import Registry, Task
from umbel.terminal import make_visible

MASKED = "••••••"
_MAX_DEPTH = 50
_UNREADABLE = {"unreadable", "content_type", "data_base64"}
"""The fields of a body that cannot be decoded: it may contain any value."""
_PLAIN = (str, int, float, type(None))
"""Types of default values that contain no fields."""
_ERROR_TYPE = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Warning|Group)(?=: )", re.ASCII)


def visible(text: object, limit: int = 200) -> str:
    """Return text in one line with visible control characters, cut to a length."""
    shown = str(make_visible(str(text)[: limit + 1], lines=False))
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def visible_lines(text: object, limit: int = 64_000) -> str:
    """Return text of several lines with visible control characters, cut to a length."""
    shown = str(make_visible(str(text)[:limit]))
    return shown if len(str(text)) <= limit else shown + "\n… cut here"


_ROW_FIELDS = (
    *("id", "task", "queue", "state", "attempt", "deaths", "priority", "created", "not_before"),
    *("started", "finished", "waited", "ran", "worker", "gate", "progress"),
)
_MAX_PREVIEW = 200
"""Characters of an argument or an error in a list."""


def _preview(value: Any) -> Any:
    """Return a value as it is if it is short, else the beginning of its JSON."""
    encoded = msgspec.json.encode(value, enc_hook=repr)
    if len(encoded) <= _MAX_PREVIEW:
        return value
    return encoded[: 4 * _MAX_PREVIEW].decode(errors="ignore")[:_MAX_PREVIEW] + "…"


class _Code(str):
    """Text that stands for itself where a value is written as code."""

    __slots__ = ()
    __repr__ = str.__str__


class Visibility:
    """Makes documents of jobs for one user. Values that the user may not see are not in them."""

    def __init__(
        self, user: User, mask: Collection[str], codec: BodyCodec, registry: Registry
    ) -> None:
        self._mask = frozenset() if user.may("operator") else frozenset(mask)
        self._codec = codec
        self._registry = registry

    @property
    def may_search_texts(self) -> bool:
        """Whether the user may search in arguments and errors: a match would tell their values."""
        return not self._mask

    def job(self, record: Record) -> dict[str, Any]:
        """Return a job with its arguments by name."""
        document = job_document(record, self._codec)
        document["arguments"] = self._arguments(record, document)
        del document["args"], document["kwargs"]
        if self._mask:
            document["result"] = self._masked(document["result"])
            # Its values have no names.
            document["body"] = None if document["body"] is None else MASKED
            document["headers"] = dict.fromkeys(document["headers"], MASKED)
            document["failure"] = self._without_text(document["failure"])
            # Texts and keys may be made of arguments.
            document["reason"] = document["reason"] and MASKED
            document["unique"] = document["unique"] and MASKED
            document["slots"] = [{"gate": slot["gate"]} for slot in document["slots"]]
            for attempt in document["attempts"]:
                attempt["failure"] = self._without_text(attempt["failure"])
                attempt["reason"] = attempt["reason"] and MASKED
        return document

    def row(self, record: Record) -> dict[str, Any]:
        """Return what a list shows of a job. Long arguments and errors are cut, so it is small."""
        document = self.job(record)
        error = document["failure"]
        kept = {name: document[name] for name in _ROW_FIELDS}
        return kept | {
            "arguments": [
                {"name": one["name"], "value": _preview(one["value"])}
                for one in document["arguments"]
            ],
            "error": document["reason"][:_MAX_PREVIEW]
            if error is None
            else error.line[:_MAX_PREVIEW],
            "runs": len(document["attempts"]),
        }

    def value(self, value: Any) -> Any:
        """Return a value, or what the user may see of it."""
        return self._masked(value)

    def argument(self, value: Any, *names: str) -> Any:
        """Return the value of an argument, or what the user may see of it.

        ``names`` are those of the argument and of its parameter. If one is empty, because it is not
        known, it may be one that is masked.
        """
        is_hidden = bool(self._mask) and any(not one or one in self._mask for one in names)
        return MASKED if is_hidden else self._masked(value)

    def default(self, parameter: Parameter) -> str:
        """Return the default value of a parameter as code, or what the user may see of it."""
        value = parameter.default
        is_hidden = parameter.name in self._mask or not isinstance(value, _PLAIN)
        return MASKED if self._mask and is_hidden else repr(value)

    def signature(self, signature: Signature) -> str:
        """Return a signature as code, with what the user may see of default values."""
        return str(
            signature.replace(
                parameters=[
                    one
                    if one.default is one.empty
                    else one.replace(default=_Code(self.default(one)))
                    for one in signature.parameters.values()
                ]
            )
        )

    def error(self, text: str) -> str:
        """Return an error or a reason. A user who may not see values sees the type of an error.

        Other texts may contain the value of an argument.
        """
        if not self._mask or not text:
            return text
        found = _ERROR_TYPE.match(text)
        return MASKED if found is None else found[0]

    def _arguments(self, record: Record, document: dict[str, Any]) -> list[dict[str, Any]]:
        task = self._registry.get(record.task)
        args = document["args"] if isinstance(document["args"], list) else []
        kwargs = document["kwargs"] if isinstance(document["kwargs"], dict) else {}
        named = [(parameter_name(task, place), value) for place, value in enumerate(args)]
        shown = [{"name": name, "value": self.argument(value, name)} for name, value in named]
        return shown + [
            {"name": name, "value": self.argument(value, name, parameter_name(task, name) or name)}
            for name, value in kwargs.items()
        ]

    def _masked(self, value: Any, depth: int = 0) -> Any:
        if not self._mask:
            return value
        if depth > _MAX_DEPTH:
            return MASKED
        if isinstance(value, dict):
            if value.keys() == _UNREADABLE:
                return MASKED
            return {
                name: MASKED if name in self._mask else self._masked(one, depth + 1)
                for name, one in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._masked(one, depth + 1) for one in value]
        return value

    def _without_text(self, failure: Failure | None) -> Failure | None:
        """Return only the type of a failure: its text may contain the value of an argument."""
        return None if failure is None else Failure(failure.type, MASKED)


def parameter_name(task: Task[Any, Any] | None, place: int | str) -> str:
    """Return the parameter that gets an argument; an empty text if it is not known.

    ``place`` is the position of the argument, or the name with which it was given.
    """
    if task is None:
        return ""
    by_position: list[str] = []
    by_name: list[str] = []
    rest = {int: "", str: ""}
    for name, one in task.parameters.signature.parameters.items():
        match one.kind:
            case one.VAR_POSITIONAL:
                rest[int] = name
            case one.VAR_KEYWORD:
                rest[str] = name
            case one.KEYWORD_ONLY:
                by_name.append(name)
            case _:
                by_position.append(name)
    if isinstance(place, int):
        return by_position[place] if place < len(by_position) else rest[int]
    return place if place in (*by_position, *by_name) else rest[str]
