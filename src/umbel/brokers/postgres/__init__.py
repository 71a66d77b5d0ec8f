"""The PostgreSQL broker. It is a store too: publishing and settling write the job's record."""

from umbel.brokers.postgres.broker import PostgresBroker
from umbel.brokers.postgres.ledger import PostgresLedger

__all__ = ["PostgresBroker", "PostgresLedger"]
