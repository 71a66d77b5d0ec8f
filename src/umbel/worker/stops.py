"""Why a running task is stopped from outside."""

from __future__ import annotations

from enum import IntEnum

from umbel.tasks import Run


class Why(IntEnum):
    """The reasons, weakest first: a stronger one replaces a weaker, never the reverse."""

    UNFIT = 0
    INTERRUPT = 1
    TIMEOUT = 2
    DUPLICATE = 3
    CANCEL = 4
    LOST = 5

    @property
    def text(self) -> str:
        """The reason in words."""
        return _TEXTS[self]


_TEXTS = {
    Why.UNFIT: "the member of its pool failed its check",
    Why.INTERRUPT: "the worker is stopping",
    Why.TIMEOUT: "timed out",
    Why.DUPLICATE: "a duplicate: done before, says its dedupe policy",
    Why.CANCEL: "cancelled",
    Why.LOST: "its lease is lost",
}


class Stop(BaseException):
    """Raised inside a ``def`` task to stop it. ``except Exception`` lets it pass."""

    def __init__(self, why: Why = Why.INTERRUPT, reason: str = "") -> None:
        super().__init__(reason or why.text)
        self.why = why
        self.reason = reason or why.text


class Unfit(Stop):
    """Raised before the task begins: a member that it was given failed its check."""

    def __init__(self, pool: str, member: str) -> None:
        super().__init__(Why.UNFIT)
        self.member = (pool, member)


def ask_to_stop(run: Run, stop: Stop) -> bool:
    """Note why a run is to stop. False when it was told as much, or more, before."""
    known = run.stop_reason
    if isinstance(known, Stop) and known.why >= stop.why:
        return False
    run.stop_reason = stop
    return True
