"""Read the JSON columns of a database. Operators edit rows by hand, so these never raise."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from umbel.messages.gates import Rule, Slot
from umbel.messages.leases import Attempt, Failure

MALFORMED = "malformed"
"""The header that names a column which cannot be read, and why."""

# A negative count would allow almost endless retries of a section.
Counts = dict[str, Annotated[int, msgspec.Meta(ge=0)]]


def read_headers(headers: str, sections: str = "{}") -> dict[str, str]:
    """Return headers with text values; only the header MALFORMED if a column cannot be read."""
    if headers == "{}" and sections == "{}":
        return {}
    if _read(sections, Counts, None) is None:
        return {MALFORMED: "sections: must be an object of counts"}
    found = _read(headers, dict[str, Any], None)
    if found is None:
        return {MALFORMED: "headers: must be an object"}
    if MALFORMED in found:
        return {MALFORMED: f"headers: {MALFORMED} is a reserved name"}
    try:
        return plain_headers(found)
    except RecursionError:  # it could be decoded, but not encoded again
        return {MALFORMED: "headers: nested too deeply"}


def plain_headers(found: dict[str, Any]) -> dict[str, str]:
    """Return headers with text values: other values as JSON, without those that are null."""
    return {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in found.items()
        if value is not None
    }


def read_sections(text: str) -> dict[str, int]:
    """Return how often each retry section has failed."""
    return {} if text == "{}" else _read(text, Counts, {})


def read_attempts(text: str) -> tuple[Attempt, ...]:
    """Return the attempts in a job's history."""
    found: tuple[Attempt, ...] = _read(text, tuple[Attempt, ...], ())
    return found


def read_failure(text: str | None) -> Failure | None:
    """Return the last failure of a job."""
    return _read(text, Failure, Failure("", "cannot be read")) if text else None


def read_gates(text: str | None) -> tuple[str, ...]:
    """Return the gates that a job has to pass."""
    found: tuple[str, ...] = _read(text, tuple[str, ...], ()) if text else ()
    return found


def read_slots(text: str | None) -> tuple[Slot, ...]:
    """Return the slots that a job holds."""
    found: tuple[Slot, ...] = _read(text, tuple[Slot, ...], ()) if text else ()
    return found


def read_rule(declared: str, imposed: int | None) -> Rule:
    """Return the rule of a gate. A rule that cannot be read has capacity 0: no job passes."""
    rule: Rule = _read(declared, Rule, Rule(name="", capacity=0))
    return rule if imposed is None else replace(rule, capacity=imposed)


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _read(text: str, kind: Any, default: Any) -> Any:
    try:
        return _decoder(kind).decode(text)
    except (msgspec.MsgspecError, UnicodeError, ValueError, RecursionError):
        return default
