"""The SQLite broker. It is a store too: publishing and settling write the job's record."""

from umbel.brokers.sqlite.broker import SqliteBroker
from umbel.brokers.sqlite.ledger import SqliteLedger

__all__ = ["SqliteBroker", "SqliteLedger"]
