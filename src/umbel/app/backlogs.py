"""From settings to the backlog they ask for."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import unquote, urlsplit

from umbel.backends.backlog import Backlog
from umbel.clock import Clock
from umbel.configuration import Settings
from umbel.errors import ConfigurationError
from umbel.publisher.memory_backlog import MemoryBacklog
from umbel.publisher.reserve_backlog import Reserve
from umbel.urls import masked_url

_SHARE = 0.15
"""Of the publishing deadline a backlog may take so much; memory takes over then."""


def load_backlog(settings: Settings) -> None:
    """Import what a backlog needs: later, a signal handler may come in the middle of it."""
    if settings.backlog in ("memory", "none"):
        return
    with suppress(ImportError):  # told when it is used
        if urlsplit(settings.backlog).scheme == "sqlite":
            import umbel.backends.sqlite.backlog
        else:
            import umbel.backends.postgres.backlog  # noqa: F401


def backlog(settings: Settings, clock: Clock) -> Backlog | None:
    """Where messages wait while the broker is out of reach; None: nowhere."""
    if settings.backlog == "none":
        return None
    memory = MemoryBacklog(clock, limit=settings.backlog_limit)
    if settings.backlog == "memory":
        return memory
    return Reserve(_durable(settings, clock), memory)


def _durable(settings: Settings, clock: Clock) -> Backlog:
    url, busy = settings.backlog, _SHARE * settings.deadline
    limit, namespace = settings.backlog_limit, settings.namespace
    parts = urlsplit(url)
    if parts.scheme != "sqlite":
        try:
            from umbel.backends.postgres.backlog import PostgresBacklog
        except ImportError as error:
            raise ConfigurationError(
                f"backlog={masked_url(url)!r} needs its driver:"
                f" pip install 'umbel[postgres]' ({error})"
            ) from None
        return PostgresBacklog(url, namespace, clock, limit=limit, busy=busy)
    from umbel.backends.sqlite.backlog import SqliteBacklog

    path = unquote(parts.path)[1:]
    if parts.netloc or parts.query or not path or path == ":memory:":
        raise ConfigurationError(
            f"backlog={masked_url(url)!r}: three slashes and a path, as in sqlite:///backlog.db"
        )
    return SqliteBacklog(path, namespace, clock, limit=limit, busy=busy)
