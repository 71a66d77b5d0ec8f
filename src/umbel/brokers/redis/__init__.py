"""The Redis broker. It is a store too: publishing and settling write the job's record."""

from umbel.brokers.redis.broker import RedisBroker
from umbel.brokers.redis.ledger import RedisLedger

__all__ = ["RedisBroker", "RedisLedger"]
