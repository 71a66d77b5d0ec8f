"""The log of a run. Lines are formatted only if they are needed."""

from __future__ import annotations

import re
from typing import Any

from umbel.testing.simulation.loop import Timeline

_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Trace:
    """Log lines: time, actor and event."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._lines: list[tuple[int, float, str, str, tuple[Any, ...]]] = []
        self.names: dict[str, str] = {}
        """Short names for ids."""

    def add(self, who: str, what: str, *about: Any) -> None:
        """Add a line."""
        self._lines.append((self._timeline.steps, self._timeline.now, who, what, about))

    def lines(self, last: int | None = None) -> list[str]:
        """Return the lines as text: all, or the last ones."""
        chosen = self._lines if last is None else self._lines[-last:]
        return [
            f"{step:6d} {at:9.3f}  {who:<10} {what} {self._text(about)}".rstrip()
            for step, at, who, what, about in chosen
        ]

    def _text(self, about: tuple[Any, ...]) -> str:
        return self.named(" ".join(map(str, about)))

    def named(self, text: str) -> str:
        """Return the text with short names instead of ids."""
        return _ID.sub(lambda found: self.names.get(found[0], found[0]), text)
