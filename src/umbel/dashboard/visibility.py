"""What of a job a user sees: names for arguments, masked fields, and text that is safe to show."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from umbel.control import User
from umbel.messages import BodyCodec, Failure, Record
from umbel.operations import job_document
from umbel.tasks import Registry
from umbel.terminal import make_visible

MASKED = "••••••"
_MAX_DEPTH = 50


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
            document["body"] = self._masked(document["body"])
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

    def value(self, value: Any, name: str = "") -> Any:
        """Return a value, or what the user may see of it. ``name`` is the argument that it is."""
        return MASKED if name in self._mask else self._masked(value)

    def error(self, text: str) -> str:
        """Return an error, or only its type: its text may contain the value of an argument."""
        name = text.partition(":")[0]
        if not self._mask or not text:
            return text
        return name if name.replace(".", "").isidentifier() else MASKED

    def _arguments(self, record: Record, document: dict[str, Any]) -> list[dict[str, Any]]:
        task = self._registry.get(record.task)
        names = [] if task is None else [*task.parameters.signature.parameters]
        found: list[dict[str, Any]] = []
        args = document["args"] if isinstance(document["args"], list) else []
        kwargs = document["kwargs"] if isinstance(document["kwargs"], dict) else {}
        for place, value in enumerate(args):
            name = names[place] if place < len(names) else ""
            # Without the code, the name of a positional argument is not known: it may be masked.
            hidden = bool(self._mask) and (not name or name in self._mask)
            found.append({"name": name, "value": MASKED if hidden else self._masked(value)})
        for name, value in kwargs.items():
            hidden = name in self._mask
            found.append({"name": name, "value": MASKED if hidden else self._masked(value)})
        return found

    def _masked(self, value: Any, depth: int = 0) -> Any:
        if not self._mask:
            return value
        if depth > _MAX_DEPTH:
            return MASKED
        if isinstance(value, dict):
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
