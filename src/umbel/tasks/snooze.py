"""``raise Snooze(30)`` runs the job again later; this run does not count as an attempt."""

from __future__ import annotations

from umbel.errors import ConfigurationError


class Snooze(BaseException):
    """Raised by a task that cannot do its work yet. Costs no attempt.

    Not an Exception: ``except Exception`` and ``with optional():`` do not catch it.
    """

    def __init__(self, delay: float) -> None:
        if not 0 <= delay < float("inf"):
            raise ConfigurationError(f"Snooze({delay!r}): give seconds, 0 or more")
        super().__init__(f"run again in {delay:g} s")
        self.delay = delay
