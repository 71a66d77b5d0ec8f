"""The store's roles on PostgreSQL."""

from umbel.stores.postgres.control import PostgresControl
from umbel.stores.postgres.records import PostgresRecords
from umbel.stores.postgres.registry import PostgresRegistry

__all__ = ["PostgresControl", "PostgresRecords", "PostgresRegistry"]
