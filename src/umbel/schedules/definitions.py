"""What a schedule is: its plan, its declaration, and an operator's changes."""

from __future__ import annotations

import hashlib
from typing import Any, Literal, get_args

import msgspec
from msgspec.structs import replace

from umbel.backends.coordination import MAX_VALUE_BYTES, json_value
from umbel.errors import ConfigurationError
from umbel.messages import TOKEN_SEPARATOR, Envelope
from umbel.schedules.timing import Timing

Overlap = Literal["skip", "queue", "allow"]
"""What happens if the previous job has not ended: the tick is skipped, it waits, or both run."""
CatchUp = Literal["none", "last", "all"]
"""Which missed ticks are published after a downtime: none, the last one, or at most a hundred."""
MAX_NAME_LENGTH = 200


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a schedule fires, and what happens when it cannot.

    Raises:
        ConfigurationError: an option is wrong; the text says what to write instead.
    """

    timing: Timing
    overlap: Overlap = "skip"
    catch_up: CatchUp = "last"
    jitter: int = 0
    """Up to so many seconds later a tick may run. It is the same each time it is computed."""

    def __post_init__(self) -> None:
        for field, known in (("overlap", get_args(Overlap)), ("catch_up", get_args(CatchUp))):
            value = getattr(self, field)
            if value not in known:
                choices = ", ".join(f'"{one}"' for one in known)
                raise ConfigurationError(f"{field}={value!r:.80}: give one of {choices}")
        limit = self.timing.every or 86_400
        is_whole = isinstance(self.jitter, int) and not isinstance(self.jitter, bool)
        if not is_whole or not 0 <= self.jitter < limit:
            raise ConfigurationError(
                f"jitter={self.jitter!r:.80}: give whole seconds, 0 to {limit - 1:,}, less than the"
                " time between two ticks"
            )

    @property
    def warning(self) -> str | None:
        """What the options do that their writer may not expect."""
        if self.overlap == "skip" and self.catch_up == "all":
            return (
                'catch_up="all" with overlap="skip": of several missed ticks only the first runs;'
                ' give overlap="queue" to run them one after the other'
            )
        return None


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as its code, or an operator, has defined it."""

    plan: Plan
    template: Envelope
    """The job of each tick, encoded by the process that defined the schedule: the scheduler needs
    neither the task nor its code."""
    since: float = 0.0
    """When it was defined, by the store's clock. It fires at times after this."""
    who: str = ""
    """The operator who added it."""

    @property
    def fingerprint(self) -> str:
        """Identifies what it says, regardless of when it was said."""
        text = json_value(replace(self, since=0.0))
        return hashlib.sha256(text).hexdigest()[:16]

    def encode(self, name: str) -> bytes:
        """Return it as it is stored. Raise ConfigurationError if it is too large."""
        value = json_value(self)
        if len(value) > MAX_VALUE_BYTES:
            raise ConfigurationError(
                f"schedule {name!r}: its job has {len(value):,} bytes; at most {MAX_VALUE_BYTES:,}"
                " are allowed. Let the task load large arguments itself; instead of a large graph,"
                " schedule a task that starts it"
            )
        return value


class Override(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an operator has changed. Each field wins over the definition until it is reset."""

    timing: Timing | None = None
    zone: str | None = None
    overlap: Overlap | None = None
    catch_up: CatchUp | None = None
    jitter: int | None = None
    paused: bool = False
    reason: str = ""
    who: str = ""
    since: float = 0.0
    """When a field was changed last. The change applies to times after this."""
    resumed: float = 0.0
    """When it was resumed last. Times before this are not missed."""

    def apply(self, plan: Plan) -> Plan:
        """Return the plan with these changes. Raise ConfigurationError if they do not fit."""
        timing = replace(self.timing or plan.timing, zone=self.zone or plan.timing.zone)
        return Plan(
            timing=timing,
            overlap=self.overlap or plan.overlap,
            catch_up=self.catch_up or plan.catch_up,
            jitter=plan.jitter if self.jitter is None else self.jitter,
        )

    def changes(self) -> dict[str, Any]:
        """Return the fields that are changed, with their values."""
        fields = ("timing", "zone", "overlap", "catch_up", "jitter")
        found = {field: getattr(self, field) for field in fields}
        return {field: value for field, value in found.items() if value is not None}


def check_name(name: object) -> str:
    """Return the name of a schedule. Raise ConfigurationError if it cannot be one."""
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= MAX_NAME_LENGTH
        or not name.isprintable()
        or name.strip() != name
        or TOKEN_SEPARATOR in name
    ):
        raise ConfigurationError(
            f"schedule name={name!r:.80}: give 1 to {MAX_NAME_LENGTH} printable characters, without"
            f" {TOKEN_SEPARATOR} and without spaces at the ends"
        )
    return name
