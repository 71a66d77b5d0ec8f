"""Why a running task is stopped from outside."""

from __future__ import annotations

from enum import Enum


class Why(Enum):
    """The reasons, weakest first; a running task may be told more than one."""

    INTERRUPT = "the worker is stopping"
    TIMEOUT = "timed out"
    CANCEL = "cancelled"
    DUPLICATE = "a duplicate: done before, says its dedupe policy"
    LOST = "its lease is lost"


class Stop(BaseException):
    """Raised inside a ``def`` task to stop it. ``except Exception`` lets it pass."""

    def __init__(self, why: Why = Why.INTERRUPT, reason: str = "") -> None:
        super().__init__(reason or why.value)
        self.why = why
        self.reason = reason or why.value
