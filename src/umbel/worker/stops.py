"""Why the worker stops a running task."""

from __future__ import annotations

from enum import IntEnum

from umbel.tasks import Run


class StopCause(IntEnum):
    """The causes, weakest first: a stronger cause replaces a weaker one, never the reverse."""

    UNFIT = 0
    INTERRUPT = 1
    TIMEOUT = 2
    DUPLICATE = 3
    CANCEL = 4
    LOST = 5

    @property
    def text(self) -> str:
        """The cause in words."""
        return _TEXTS[self]


_TEXTS = {
    StopCause.UNFIT: "the member of its pool failed its check",
    StopCause.INTERRUPT: "the worker is stopping",
    StopCause.TIMEOUT: "timed out",
    StopCause.DUPLICATE: "a duplicate: its dedupe policy says that it is done",
    StopCause.CANCEL: "cancelled",
    StopCause.LOST: "its lease is lost",
}


class Stop(BaseException):
    """Raised inside a ``def`` task to stop it. ``except Exception`` does not catch it."""

    def __init__(self, cause: StopCause = StopCause.INTERRUPT, reason: str = "") -> None:
        super().__init__(reason or cause.text)
        self.cause = cause
        self.reason = reason or cause.text


class Unfit(Stop):
    """Raised before the task begins: the pool member that the job was given failed its check."""

    def __init__(self, pool: str, member: str) -> None:
        super().__init__(StopCause.UNFIT)
        self.member = (pool, member)


def request_stop(run: Run, stop: Stop) -> bool:
    """Set why a run is to stop. Return False if it has an equal or stronger cause already."""
    known = run.stop_reason
    if isinstance(known, Stop) and known.cause >= stop.cause:
        return False
    run.stop_reason = stop
    return True
