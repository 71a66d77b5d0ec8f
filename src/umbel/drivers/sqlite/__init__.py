"""SQLite files: one writer at a time, any number of processes, woken by the write-ahead log."""

from umbel.drivers.sqlite.database import (
    Database,
    Home,
    all_or_nothing,
    migrations,
    version,
    version_of,
    writing,
)
from umbel.drivers.sqlite.tables import cancel_idle

__all__ = [
    "Database",
    "Home",
    "all_or_nothing",
    "cancel_idle",
    "migrations",
    "version",
    "version_of",
    "writing",
]
