"""Nodes of workflows that wait and run no task: signals and sleeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from umbel.errors import ConfigurationError
from umbel.tasks.composing import CanvasMethods, Composable, check_nodes
from umbel.tasks.conditions import Placeholder
from umbel.tasks.policies import storable_name
from umbel.tasks.tracing import note_made, note_replaced

R_co = TypeVar("R_co", covariant=True)

_MAX_SECONDS = 3_000_000_000.0
TYPES: dict[str, type] = {one.__name__: one for one in (bool, int, float, str, list, dict)}
"""What ``type`` of a signal may be, by name."""


class _Nothing:
    """The default of a signal that has none."""

    def __repr__(self) -> str:
        return "no default"


NOTHING = _Nothing()


class Waiting(CanvasMethods[R_co]):
    """A node that waits and runs no task: a signal or a sleep."""

    __slots__ = ("before",)

    def after(self, *nodes: Composable[Any]) -> Any:
        """Wait for these nodes first."""
        check_nodes("after", nodes)
        changed = self._copied()
        changed.before = (*self.before, *nodes)
        note_replaced(self, changed)
        return changed

    def inner(self) -> Sequence[Any]:
        return self.before

    def _begin(self) -> None:
        self._set_up()
        self.before: tuple[Composable[Any], ...] = ()
        note_made(self)


class Signal(Waiting[Any]):
    """Waits for a value from outside: from a person, or from another program.

    ``handle.signal("approved", True)`` gives it, or ``umbel workflows signal``. The first value
    counts. ``timeout`` is counted in seconds from when the nodes before it have ended; after it,
    the value is ``default``, or the node fails. ``type`` is what values must be.
    """

    __slots__ = ("default", "name", "timeout", "type")

    def __init__(
        self,
        name: str,
        *,
        timeout: float | None = None,
        default: Any = NOTHING,
        type: type | None = None,
    ) -> None:
        if not storable_name(name):
            raise ConfigurationError(f"Signal({name!r:.80}): give a name of 1 to 255 characters")
        if timeout is not None:
            check_seconds("timeout", timeout)
        if default is not NOTHING and timeout is None:
            raise ConfigurationError(f"default of signal {name}: it needs a timeout")
        if type is not None and type not in TYPES.values():
            known = ", ".join(TYPES)
            raise ConfigurationError(f"type={type!r:.80} of signal {name}: give one of {known}")
        if type is not None and default is not NOTHING and not _fits(default, type):
            raise ConfigurationError(
                f"default={default!r:.80} of signal {name}: it is neither {type.__name__} nor None"
            )
        self._begin()
        self.name = name
        self.timeout = timeout
        self.default = default
        self.type = type.__name__ if type is not None else ""

    def __repr__(self) -> str:
        return f"signal {self.name}"


class Sleep(Waiting[Any]):
    """Waits for so many seconds, also for many days. It occupies no worker.

    In a chain, it passes the result of the node before it on.
    """

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        check_seconds("Sleep", seconds)
        self._begin()
        self.seconds = float(seconds)

    def __repr__(self) -> str:
        return f"sleep of {self.seconds:g} s"


def _fits(default: Any, wanted: type) -> bool:
    if default is None or isinstance(default, Placeholder):
        return True
    if isinstance(default, bool):
        return wanted is bool
    return isinstance(default, (int, float) if wanted is float else wanted)


def check_seconds(name: str, value: object) -> None:
    """Raise ConfigurationError unless a value is a number of seconds above 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= _MAX_SECONDS:  # type: ignore[operator]
        raise ConfigurationError(f"{name}={value!r:.80}: give seconds, more than 0")
