"""SQLite files: one writer at a time, any number of processes, woken by the write-ahead log."""

from umbel.drivers.sqlite.database import Database, Home
from umbel.drivers.sqlite.schema import migrations, version, version_of
from umbel.drivers.sqlite.tables import cancel_idle
from umbel.drivers.sqlite.transactions import all_or_nothing, writing

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
