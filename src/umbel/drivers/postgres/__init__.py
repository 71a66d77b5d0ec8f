"""PostgreSQL: few connections to one schema, woken by LISTEN or, behind pgbouncer, by polls."""

from umbel.drivers.postgres.arrays import blobs, document, numbers, storable, texts
from umbel.drivers.postgres.connections import (
    aperform_within,
    block_within,
    is_async_connection,
    is_sync_connection,
    joins_nothing,
    perform_within,
)
from umbel.drivers.postgres.database import Database
from umbel.drivers.postgres.faults import explaining
from umbel.drivers.postgres.home import Home
from umbel.drivers.postgres.lending import Lending
from umbel.drivers.postgres.listener import Listener
from umbel.drivers.postgres.schema import migrate, newest, schema_version
from umbel.drivers.postgres.steps import KeyTaken, Row, Steps, after, atomically, one

__all__ = [
    "Database",
    "Home",
    "KeyTaken",
    "Lending",
    "Listener",
    "Row",
    "Steps",
    "after",
    "aperform_within",
    "atomically",
    "blobs",
    "block_within",
    "document",
    "explaining",
    "is_async_connection",
    "is_sync_connection",
    "joins_nothing",
    "migrate",
    "newest",
    "numbers",
    "one",
    "perform_within",
    "schema_version",
    "storable",
    "texts",
]
