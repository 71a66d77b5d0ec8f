"""SQLite files: one writer at a time, any number of processes, woken by the write-ahead log."""

from umbel.drivers.sqlite.database import Database, Home, migrations, version, writing
from umbel.drivers.sqlite.tables import cancel_idle

__all__ = ["Database", "Home", "cancel_idle", "migrations", "version", "writing"]
