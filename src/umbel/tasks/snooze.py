"""``raise Snooze(30)``: run me again later; this run does not count."""

from __future__ import annotations

from umbel.errors import ConfigurationError


class Snooze(BaseException):
    """Raised by a task that cannot do its work yet. Costs no attempt.

    Not an Exception: ``except Exception`` and ``with optional():`` let it pass.
    """

    def __init__(self, delay: float) -> None:
        if not 0 <= delay < float("inf"):
            raise ConfigurationError(f"Snooze({delay!r}): give seconds, 0 or more")
        super().__init__(f"run again in {delay:g} s")
        self.delay = delay
