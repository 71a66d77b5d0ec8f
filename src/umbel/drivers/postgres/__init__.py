"""PostgreSQL: few connections to one schema, woken by LISTEN or, behind pgbouncer, by polls."""

from umbel.drivers.postgres.arrays import blobs, document, numbers, storable, texts
from umbel.drivers.postgres.callers import Caller, block_within, recognised
from umbel.drivers.postgres.database import Database
from umbel.drivers.postgres.faults import explaining
from umbel.drivers.postgres.home import Home
from umbel.drivers.postgres.lending import Lending
from umbel.drivers.postgres.listener import Listener
from umbel.drivers.postgres.origins import Origins
from umbel.drivers.postgres.schema import migrate, newest, schema_version
from umbel.drivers.postgres.steps import KeyTaken, Row, Steps, after, atomically, one

__all__ = [
    "Caller",
    "Database",
    "Home",
    "KeyTaken",
    "Lending",
    "Listener",
    "Origins",
    "Row",
    "Steps",
    "after",
    "atomically",
    "blobs",
    "block_within",
    "document",
    "explaining",
    "migrate",
    "newest",
    "numbers",
    "one",
    "recognised",
    "schema_version",
    "storable",
    "texts",
]
