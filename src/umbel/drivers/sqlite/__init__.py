"""SQLite files: one writer at a time, any number of processes, woken by the write-ahead log."""

from umbel.drivers.sqlite.database import Database, Home, parts_at_fork
from umbel.drivers.sqlite.faults import explaining
from umbel.drivers.sqlite.files import create_private
from umbel.drivers.sqlite.lending import Lent, begin, lent_out
from umbel.drivers.sqlite.schema import migrations, version, version_of
from umbel.drivers.sqlite.tables import cancel_idle
from umbel.drivers.sqlite.transactions import all_or_nothing, write_ahead, writing

__all__ = [
    "Database",
    "Home",
    "Lent",
    "all_or_nothing",
    "begin",
    "cancel_idle",
    "create_private",
    "explaining",
    "lent_out",
    "migrations",
    "parts_at_fork",
    "version",
    "version_of",
    "write_ahead",
    "writing",
]
