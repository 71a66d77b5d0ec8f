"""The store's roles on SQLite."""

from umbel.stores.sqlite.control import SqliteControl
from umbel.stores.sqlite.records import SqliteRecords
from umbel.stores.sqlite.registry import SqliteRegistry

__all__ = ["SqliteControl", "SqliteRecords", "SqliteRegistry"]
