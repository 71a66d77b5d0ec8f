"""Policies of a task: when to retry, and which calls count as the same job."""

from __future__ import annotations

from typing import Any, Literal

from umbel.errors import ConfigurationError
from umbel.resilience import Backoff, spread
from umbel.tasks.retry_after import RetryAfter, read_retry_after

_MAX_RETRY_AFTER_SECONDS = 3600.0


def storable_name(name: object) -> bool:
    """Whether every store can keep it: 1 to 255 characters, no NUL, no lone surrogates."""
    if not isinstance(name, str):
        return False
    try:
        return 0 < len(name) <= 255 and b"\x00" not in name.encode()
    except UnicodeEncodeError:
        return False


class Retry:
    """How often, when and for which errors a failed attempt is retried.

    ``Retry(10, first=1, factor=2, cap=120)`` retries up to ten times, after about 1, 2, 4 …
    seconds, at most 120. ``on`` limits it to some errors, ``never`` excludes some.
    ``Retry(0)`` never retries.

    If an HTTP error has a Retry-After header, the wait is at least as long as the header asks for,
    up to ``max_retry_after`` seconds. 0 ignores the header.
    """

    __slots__ = ("backoff", "max_retry_after", "never", "on", "times")

    def __init__(
        self,
        times: int = 5,
        *,
        first: float = 1.0,
        factor: float = 2.0,
        cap: float = 300.0,
        jitter: float = 0.2,
        on: type[BaseException] | tuple[type[BaseException], ...] = BaseException,
        never: type[BaseException] | tuple[type[BaseException], ...] = (),
        max_retry_after: float = _MAX_RETRY_AFTER_SECONDS,
    ) -> None:
        if not isinstance(times, int) or isinstance(times, bool) or not 0 <= times <= 1_000_000:
            raise ConfigurationError(f"times={times!r:.80}: give how often to retry, 0 or more")
        for name, classes in (("on", on), ("never", never)):
            given = classes if isinstance(classes, tuple) else (classes,)
            if not all(isinstance(one, type) and issubclass(one, BaseException) for one in given):
                raise ConfigurationError(f"{name}={classes!r}: give exception classes")
        if not isinstance(max_retry_after, int | float) or not 0 <= max_retry_after <= 1e10:
            raise ConfigurationError(
                f"max_retry_after={max_retry_after!r:.80}: give seconds, or 0 to ignore the header"
            )
        self.times = times
        self.max_retry_after = max_retry_after
        self.backoff = Backoff(first=first, factor=factor, cap=cap, jitter=jitter)
        self.on = on
        self.never = never

    def applies_to(self, error: BaseException) -> bool:
        """Whether the policy retries this error."""
        return isinstance(error, self.on) and not isinstance(error, self.never)

    def delay(self, tries: int, key: str) -> float | None:
        """Return the seconds until the next try after ``tries`` failed ones; None: no next try."""
        return self.backoff.delay(tries, key) if tries <= self.times else None

    def delay_after(self, error: BaseException, tries: int, key: str, now: float) -> float | None:
        """Return the seconds until the next try after this error; None: no next try."""
        delay = self.delay(tries, key)
        if isinstance(error, RetryAfter) and delay is not None:
            return error.delay
        if delay is None or not self.applies_to(error):
            return None
        asked = read_retry_after(error, now) if self.max_retry_after else None
        if asked is None:
            return delay
        # Later than asked, by a share that differs from job to job; never earlier.
        asked *= 1 + self.backoff.jitter * spread(f"{key}:{tries}")
        return max(delay, min(asked, self.max_retry_after))

    def __repr__(self) -> str:
        b = self.backoff
        return f"Retry({self.times}, first={b.first}, factor={b.factor}, cap={b.cap})"

    def numbers(self) -> dict[str, Any]:
        """Return the part that a message carries: everything but the error classes."""
        b = self.backoff
        waits = {"first": b.first, "factor": b.factor, "cap": b.cap, "jitter": b.jitter}
        return {"times": self.times, **waits, "max_retry_after": self.max_retry_after}

    def with_numbers(self, numbers: dict[str, Any]) -> Retry:
        """Return this policy with the numbers of a message."""
        unchanged = {"max_retry_after": self.max_retry_after}
        return Retry(**unchanged | numbers, on=self.on, never=self.never)


class Unique:
    """At most one live job per key. ``on_conflict`` is what happens when a second one is published.

    ``"raise"`` raises DuplicateJob, ``"return"`` returns the handle of the live job, ``"replace"``
    cancels the waiting job and publishes the new one (if the job runs, it raises DuplicateJob).
    """

    __slots__ = ("key", "on_conflict")

    def __init__(
        self, key: str, *, on_conflict: Literal["raise", "return", "replace"] = "raise"
    ) -> None:
        if not storable_name(key):
            raise ConfigurationError(f"unique={key!r:.80}: give a key of 1 to 255 characters")
        if on_conflict not in ("raise", "return", "replace"):
            raise ConfigurationError(
                f'on_conflict={on_conflict!r}: give "raise", "return" or "replace"'
            )
        self.key = key
        self.on_conflict = on_conflict

    def __repr__(self) -> str:
        return f"Unique({self.key!r}, on_conflict={self.on_conflict!r})"
