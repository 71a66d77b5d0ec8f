"""Opens the backend and the backlog that settings name."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import unquote, urlsplit

from umbel.app.link_backend import LINK_SCHEMES, LinkBackend
from umbel.backends import Backend
from umbel.backends.backlog import Backlog
from umbel.backends.choosing import STORES, open_store, open_transport
from umbel.backends.pairs import PairBackend
from umbel.clock import Clock
from umbel.configuration import DEFAULT_URL, Settings
from umbel.errors import ConfigurationError
from umbel.publisher.memory_backlog import MemoryBacklog, MemoryFallbackBacklog
from umbel.telemetry import Telemetry
from umbel.urls import mask_url

_BACKLOG_TIME_SHARE = 0.15
"""The part of the publishing deadline for a durable backlog. After that, memory is used."""


def open_backend(settings: Settings, clock: Clock, telemetry: Telemetry) -> Backend:
    """Return the backend of the settings' brokers and store. Raises ConfigurationError."""
    broker, store, namespace = settings.broker, settings.store, settings.namespace
    scheme = urlsplit(broker).scheme
    if scheme in LINK_SCHEMES:
        for name, given in (("store", store), ("brokers", settings.brokers)):
            if given:
                raise ConfigurationError(
                    f"{name}={settings.public()[name]!r}: {scheme}:// has its own already;"
                    " leave it out"
                )
        return LinkBackend(broker)
    url = store_url(settings)
    store_backend = open_store(url, namespace=namespace, deadline=settings.deadline, clock=clock)
    settings_of = {broker: "broker"}
    settings_of |= {url: f"brokers[{queue!r}]" for queue, url in settings.brokers.items()}
    settings_of.pop(url, None)
    if not settings_of:
        return store_backend
    return PairBackend(
        {url: open_transport(name, url, namespace=namespace) for url, name in settings_of.items()},
        store_backend,
        default=broker,
        by_queue=settings.brokers,
        namespace=namespace,
        clock=clock,
        telemetry=telemetry,
    )


def store_url(settings: Settings) -> str:
    """Return the URL of the job store, which may be the broker, too."""
    is_store = urlsplit(settings.broker).scheme in STORES
    return settings.store or (settings.broker if is_store else DEFAULT_URL)


def import_backlog(settings: Settings) -> None:
    """Import the backlog's modules now. Later, a signal handler could interrupt the import."""
    if settings.backlog in ("memory", "none"):
        return
    with suppress(ImportError):  # reported when the backlog is opened
        if urlsplit(settings.backlog).scheme == "sqlite":
            import umbel.backends.sqlite.backlog
        else:
            import umbel.backends.postgres.backlog  # noqa: F401


def open_backlog(settings: Settings, clock: Clock) -> Backlog | None:
    """Return the backlog of the settings; None if they name none. Raises ConfigurationError."""
    if settings.backlog == "none":
        return None
    memory = MemoryBacklog(clock, limit=settings.backlog_limit)
    if settings.backlog == "memory":
        return memory
    return MemoryFallbackBacklog(_open_durable_backlog(settings, clock), memory)


def _open_durable_backlog(settings: Settings, clock: Clock) -> Backlog:
    url, busy = settings.backlog, _BACKLOG_TIME_SHARE * settings.deadline
    limit, namespace = settings.backlog_limit, settings.namespace
    parts = urlsplit(url)
    if parts.scheme != "sqlite":
        try:
            from umbel.backends.postgres.backlog import PostgresBacklog
        except ImportError as error:
            raise ConfigurationError(
                f"backlog={mask_url(url)!r} needs its driver:"
                f" pip install 'umbel[postgres]' ({error})"
            ) from None
        return PostgresBacklog(url, namespace, clock, limit=limit, busy=busy)
    from umbel.backends.sqlite.backlog import SqliteBacklog

    path = unquote(parts.path)[1:]
    if parts.netloc or parts.query or not path or path == ":memory:":
        raise ConfigurationError(
            f"backlog={mask_url(url)!r}: three slashes and a path, as in sqlite:///backlog.db"
        )
    return SqliteBacklog(path, namespace, clock, limit=limit, busy=busy)
