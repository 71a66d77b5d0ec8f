"""Reads the JSON columns of a database. People edit rows by hand, so nothing here raises."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from umbel.messages.leases import Attempt, Failure

MALFORMED = "malformed"
"""The header that says which column of a hand-written row cannot be read."""

# Below nothing, a section would be tried again as good as for ever.
Counts = dict[str, Annotated[int, msgspec.Meta(ge=0)]]

T = TypeVar("T")


def read_headers(headers: str, sections: str = "{}") -> dict[str, str]:
    """Headers as text to text; when a column cannot be read, only the word that says so."""
    if headers == "{}" and sections == "{}":
        return {}
    if _read(sections, Counts, None) is None:
        return {MALFORMED: "sections: must be an object of counts"}
    found = _read(headers, dict[str, Any], None)
    if found is None:
        return {MALFORMED: "headers: must be an object"}
    if MALFORMED in found:
        return {MALFORMED: f"headers: {MALFORMED} is a name of our own"}
    try:
        return plain_headers(found)
    except RecursionError:  # what could just be read cannot be written again
        return {MALFORMED: "headers: nested too deeply"}


def plain_headers(found: dict[str, Any]) -> dict[str, str]:
    """Values that are no text as JSON; null is the same as nothing."""
    return {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in found.items()
        if value is not None
    }


def read_sections(text: str) -> dict[str, int]:
    """How often each retry section has failed."""
    return {} if text == "{}" else _read(text, Counts, {})


def read_attempts(text: str) -> tuple[Attempt, ...]:
    """A job's story."""
    found: tuple[Attempt, ...] = _read(text, tuple[Attempt, ...], ())
    return found


def read_failure(text: str | None) -> Failure | None:
    """What went wrong at last."""
    return _read(text, Failure, Failure("", "cannot be read")) if text else None


def _read(text: str, kind: type[T], otherwise: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError, ValueError, RecursionError):
        return otherwise
