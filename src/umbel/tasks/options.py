"""Options of a task and of one call. Frozen, keyword-only, checked when made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal

from umbel.errors import ConfigurationError
from umbel.tasks.gates import Limit, Pool, Rate, Token, as_limits, as_pools, as_rates
from umbel.tasks.option_names import check_option_names
from umbel.tasks.policies import Retry, Unique, storable_name

Loop = Literal["asyncio", "trio"]
Publishing = Literal["now", "held"]


_MAX_SECONDS = 10_000_000_000.0
"""About three centuries. Databases refuse later times."""


class Track(StrEnum):
    """What the store keeps of a job that succeeds. Failures are always kept."""

    RESULT = "result"
    """Its record and its return value."""
    STATE = "state"
    """Its record, without the return value."""
    FAILURES = "failures"
    """Nothing: the job is deleted when it succeeds."""


def _check_seconds(name: str, value: float | None, *, zero: bool = False) -> None:
    if value is None:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= _MAX_SECONDS or (value == 0 and not zero):
        least = "of at least 0" if zero else "above 0"
        raise ConfigurationError(
            f"{name}={value!r}: give seconds as a number {least}, at most {_MAX_SECONDS:,.0f}"
        )


_EARLIEST = datetime(1, 1, 1, tzinfo=UTC)
_LATEST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""The range of times in a message. As seconds since 1970, the last fraction of a second of the year
9999 would be rounded up to the year 10000."""


def _check_moment(name: str, value: datetime) -> None:
    """Refuse a time outside of the range. A time without a time zone is in UTC."""
    if not _EARLIEST <= value.replace(tzinfo=value.tzinfo or UTC) <= _LATEST:
        raise ConfigurationError(
            f"{name}={value!r}: give a time in the years 1 to 9999 in UTC, at the latest"
            f" {_LATEST.isoformat()}, or leave {name} out"
        )


def _check_shared(options: TaskOptions | CallOptions) -> None:
    if options.queue is not None and not storable_name(options.queue):
        raise ConfigurationError(f"queue={options.queue!r}: give a name of 1 to 255 characters")
    priority = options.priority
    if priority is not None and (
        not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > 32767
    ):
        raise ConfigurationError(f"priority={priority!r}: give an integer from -32767 to 32767")
    if not isinstance(options.unique, bool | Unique | None) and not callable(options.unique):
        Unique(options.unique)  # raises an error if the key is invalid
    _check_seconds("timeout", options.timeout)
    _check_seconds("keep", options.keep)
    _check_seconds("delay", options.delay, zero=True)
    if isinstance(options.expires, datetime):
        _check_moment("expires", options.expires)
    else:
        _check_seconds("expires", options.expires)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskOptions:
    """The options of a task."""

    queue: str = "default"
    priority: int = 0
    """Higher runs first, within a queue."""
    delay: float | None = None
    """Seconds to wait before the first run."""
    expires: float | datetime | None = None
    """Seconds after publishing, or a time, after which it is not started any more."""
    timeout: float | None = None
    """Seconds one attempt may take."""
    retry: Retry = field(default_factory=Retry)
    unique: bool | str | Unique | Callable[..., str] = False
    """One live job per task (True), per key, or per key computed from the arguments."""
    interruptible: bool = False
    """Safe to stop anywhere and run again: it goes back to the queue when a worker stops."""
    publishing: Publishing | None = None
    """When its own messages are published, outside a step: ``held`` until it succeeds, or ``now``.
    An interruptible task without this option gets a warning: an interrupted run publishes again."""
    dedupe: Callable[..., Any] | None = None
    """Called with the arguments before a run; if it returns true, the job is a duplicate."""
    track: Track = Track.RESULT
    keep: float | None = None
    """Seconds after which the record and result of a success are deleted, if ``keep_days`` and
    ``keep_count`` of the application do not delete them earlier."""
    loop: Loop = "asyncio"
    """For ``async def`` tasks: which library's event loop the coroutine is written for."""
    limit: tuple[Limit, ...] = ()
    """How many run at once: a number, a Limit, or several of them."""
    rate: tuple[Rate, ...] = ()
    """How many start in a time: ``"200/m"``, a Rate, or several. Limits are ignored then."""
    pool: tuple[Pool, ...] = ()
    """The pool of which each run needs a member, as ``app.pool`` returned it, or several."""
    affinity: Token | None = None
    """The key that keeps jobs on one worker: an argument's name, or a function of the arguments."""
    broadcast: bool | float = False
    """Run it once on every running worker. A number: also on workers that start within so many
    seconds after it was published."""
    only_if_routed: bool = False
    """With affinity: if no worker has the key, the job is cancelled instead of routed."""
    max_deaths: int = 3
    """How many worker deaths it may cause before it is buried; with 1 it never runs again."""
    cron: str | None = None
    """Publish it at these times, without arguments: ``"0 3 * * *"``."""
    every: float | None = None
    """Publish it every so many seconds, without arguments."""
    zone: str | None = None
    """The time zone of ``cron``; UTC by default."""
    overlap: str | None = None
    """With a schedule: what happens if its previous job has not ended: ``skip``, ``queue``,
    ``allow``."""
    catch_up: str | None = None
    """With a schedule: which missed ticks are published later: ``none``, ``last``, ``all``."""
    jitter: int | None = None
    """With a schedule: by up to how many seconds its jobs are delayed, so that they spread."""

    def __post_init__(self) -> None:
        _check_shared(self)
        object.__setattr__(self, "track", _track(self.track))
        object.__setattr__(self, "retry", _retry(self.retry))
        object.__setattr__(self, "limit", as_limits(self.limit))
        object.__setattr__(self, "rate", as_rates(self.rate))
        object.__setattr__(self, "pool", as_pools(self.pool))
        if self.affinity is not None and not (
            callable(self.affinity) or storable_name(self.affinity)
        ):
            raise ConfigurationError(
                f"affinity={self.affinity!r:.80}: give an argument's name or a function"
            )
        if self.keep is not None and self.track is Track.FAILURES:
            raise ConfigurationError(
                'keep and track="failures": nothing of a success is kept; give one of them'
            )
        if not isinstance(self.broadcast, bool):
            _check_seconds("broadcast", self.broadcast)
        if self.broadcast and self.affinity is not None:
            raise ConfigurationError("broadcast and affinity: each says where it runs; give one")
        if self.only_if_routed and self.affinity is None:
            raise ConfigurationError("only_if_routed=True: give affinity=... with it")
        if self.loop not in ("asyncio", "trio"):
            raise ConfigurationError(f'loop={self.loop!r}: give "asyncio" or "trio"')
        if self.publishing not in (None, "now", "held"):
            raise ConfigurationError(f'publishing={self.publishing!r}: give "held" or "now"')
        if not isinstance(self.max_deaths, int) or not 1 <= self.max_deaths <= 32767:
            raise ConfigurationError(f"max_deaths={self.max_deaths!r}: give 1 to 32767")

    def schedule_options(self) -> dict[str, Any]:
        """Return the options of its schedule; empty if it has none."""
        names = ("cron", "every", "zone", "overlap", "catch_up", "jitter")
        found = {name: getattr(self, name) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def from_declaration(cls, declaration: Mapping[str, Any]) -> TaskOptions:
        """Return the options of ``@task(...)``. Raise ConfigurationError for unknown names."""
        check_option_names(declaration, ["name", *(one.name for one in fields(cls))], "a task")
        return cls(**declaration)


@dataclass(frozen=True, kw_only=True, slots=True)
class CallOptions:
    """The options of one call. None keeps the option of the task."""

    queue: str | None = None
    priority: int | None = None
    delay: float | None = None
    not_before: datetime | None = None
    expires: float | datetime | None = None
    timeout: float | None = None
    retry: Retry | None = None
    unique: str | Unique | None = None
    track: Track | None = None
    keep: float | None = None
    affinity: str | None = None
    """A key that replaces the one from the arguments."""
    stay: bool = False
    """Inside a job that has a key: run on the same worker, by the same key."""
    worker: int | str | None = None
    """The index or name of the one worker that runs it, from that worker's own queue."""
    connection: Any = None
    """The caller's database connection or session: publish in its transaction."""
    id: str | None = None
    """A UUID to use as the job's id. Publishing the same id twice publishes once."""

    def __post_init__(self) -> None:
        _check_shared(self)
        if self.track is not None:
            object.__setattr__(self, "track", _track(self.track))
        if self.retry is not None:
            object.__setattr__(self, "retry", _retry(self.retry))
        if self.not_before is not None and not isinstance(self.not_before, datetime):
            raise ConfigurationError(f"not_before={self.not_before!r}: give a datetime")
        if self.not_before is not None:
            _check_moment("not_before", self.not_before)
        if self.affinity is not None and not storable_name(self.affinity):
            raise ConfigurationError(f"affinity={self.affinity!r:.80}: give a key, as text")
        if self.worker is not None and not _is_worker(self.worker):
            raise ConfigurationError(
                f"worker={self.worker!r:.80}: give a worker's index or name; umbel workers shows"
                " them"
            )
        ways = {"affinity": self.affinity, "stay": self.stay, "worker": self.worker}
        chosen = [name for name, value in ways.items() if value is not None and value is not False]
        if len(chosen) > 1 or (self.worker is not None and self.queue is not None):
            given = " and ".join([*chosen, *(["queue"] if self.queue is not None else [])])
            raise ConfigurationError(f"{given}: each says where it runs; give one")
        if self.delay is not None and self.not_before is not None:
            raise ConfigurationError("delay and not_before: give one of them")

    def merged(self, changes: dict[str, Any]) -> CallOptions:
        """Return these options with some changed. Raise ConfigurationError for unknown names."""
        check_option_names(changes, [one.name for one in fields(self)], "a call")
        return replace(self, **changes)


def _is_worker(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return 0 <= value < 1_000_000
    return isinstance(value, str) and storable_name(value)


def _retry(value: Any) -> Retry:
    if isinstance(value, int) and not isinstance(value, bool):
        return Retry(value)
    if not isinstance(value, Retry):
        raise ConfigurationError(f"retry={value!r}: give a Retry or a number of retries")
    return value


def _track(value: str) -> Track:
    try:
        return Track(value)
    except ValueError:
        known = ", ".join(f'"{t.value}"' for t in Track)
        raise ConfigurationError(f"track={value!r}: give one of {known}") from None
