"""An action of a user: its name, who may do it, and what it gets."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from umbel.app import Umbel
from umbel.control import Role, User
from umbel.dashboard.rendering import plural
from umbel.dashboard.visibility import visible
from umbel.errors import BadMessage, ConfigurationError, NotAllowed
from umbel.operations import Operations

MAX_BULK_JOBS = 10_000
"""How many jobs one action changes at most."""
_MAX_FIELD = 1_000_000
_MAX_DIGITS = 20


class ActionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An action with its fields."""

    app: Umbel
    operations: Operations
    user: User
    fields: Mapping[str, str]
    answer: dict[str, Any] = {}
    """What programs are told besides the sentence: the id of a job."""

    def get(self, name: str) -> str:
        """Return a field. Raises ConfigurationError if it is missing or empty."""
        value = self.fields.get(name, "")
        if not value.strip():
            raise ConfigurationError(f"{name}: it is missing; give a value")
        return value

    def number(self, name: str, low: int, high: int) -> int:
        """Return a field as a whole number. Raises ConfigurationError."""
        text = self.get(name).strip()
        is_number = len(text) <= _MAX_DIGITS and text.isascii() and text.isdigit()
        if not is_number or not low <= int(text) <= high:
            raise ConfigurationError(f"{name}={text!r:.40}: give a number from {low} to {high:,}")
        return int(text)

    @property
    def reason(self) -> str:
        """The reason that the user gave, or that the action was made on the dashboard."""
        return self.fields.get("reason", "").strip() or f"by {self.user.name} on the dashboard"

    def optional(self, name: str) -> str | None:
        """Return a field; None if it is missing or empty."""
        return self.fields.get(name, "").strip() or None

    def decimal(self, name: str) -> float | None:
        """Return a field as a number; None if it is missing. Raises ConfigurationError."""
        text = self.optional(name)
        if text is None:
            return None
        with suppress(ValueError):
            if math.isfinite(number := float(text)):
                return number
        raise ConfigurationError(f"{name}={text!r:.40}: give a number")


Act = Callable[[ActionRequest], Awaitable[str]]


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a user can do."""

    name: str
    summary: str
    act: Act
    role: Role = "operator"
    fields: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    """Further fields, which may be missing."""
    subject: tuple[str, ...] = ()
    """The fields that name what the action is applied to."""
    filters: tuple[str, ...] = ()
    """Fields that select what it is applied to."""

    def subject_of(self, fields: Mapping[str, str]) -> str:
        """Return what a request is about, for the audit log."""
        named = [fields.get(name, "").strip() for name in self.subject]
        chosen = [f"{name}={fields[name]}" for name in self.filters if fields.get(name)]
        return " ".join(filter(None, [*named, *chosen]))


def read_call(text: str) -> dict[str, Any]:
    """Return arguments from JSON: an object is keyword arguments, a list positional ones."""
    if len(text) > _MAX_FIELD:
        raise ConfigurationError(f"arguments: at most {_MAX_FIELD:,} characters are allowed")
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigurationError(f"arguments: this is not JSON: {error}") from None
    if isinstance(found, list):
        return {"args": found, "kwargs": {}}
    if isinstance(found, dict) and found.keys() == {"args", "kwargs"}:
        if not isinstance(found["args"], list) or not isinstance(found["kwargs"], dict):
            raise BadMessage("arguments", "args is a list and kwargs an object")
        return found
    if isinstance(found, dict):
        return {"args": [], "kwargs": found}
    raise ConfigurationError("arguments: give a JSON object or a list")


def check_typed(request: ActionRequest, name: str) -> None:
    """Raise ConfigurationError unless the user has typed a name."""
    if request.fields.get("confirm") not in (name, visible(name, 300)):
        raise ConfigurationError(f"confirm: type the name {visible(name, 300)}")


def changed(jobs: int, one: str, many: str) -> str:
    """Return how many jobs were changed, as in: 2 jobs were. Raises NotAllowed if none was."""
    if not jobs:
        raise NotAllowed(
            "No job was changed: their states do not allow it any more, or there are none."
        )
    return plural(jobs, one, many)
