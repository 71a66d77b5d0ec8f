"""Reads the JSON columns of a database. People edit rows by hand, so nothing here raises."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from umbel.messages.gates import Rule, Slot
from umbel.messages.leases import Attempt, Failure

MALFORMED = "malformed"
"""The header that says which column of a hand-written row cannot be read."""

# Below nothing, a section would be tried again as good as for ever.
Counts = dict[str, Annotated[int, msgspec.Meta(ge=0)]]


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


def read_gates(text: str | None) -> tuple[str, ...]:
    """What a job has to pass."""
    found: tuple[str, ...] = _read(text, tuple[str, ...], ()) if text else ()
    return found


def read_slots(text: str | None) -> tuple[Slot, ...]:
    """What a job holds."""
    found: tuple[Slot, ...] = _read(text, tuple[Slot, ...], ()) if text else ()
    return found


def read_rule(declared: str, imposed: int | None) -> Rule:
    """What a gate goes by. What cannot be read lets nobody pass."""
    rule: Rule = _read(declared, Rule, Rule(name="", capacity=0))
    return rule if imposed is None else replace(rule, capacity=imposed)


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _read(text: str, kind: Any, otherwise: Any) -> Any:
    try:
        return _decoder(kind).decode(text)
    except (msgspec.MsgspecError, UnicodeError, ValueError, RecursionError):
        return otherwise
