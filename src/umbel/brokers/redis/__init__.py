"""The Redis broker. It is a store too: publishing and settling write the job's record.

Beside another store it is a transport, which only carries messages.
"""

from umbel.brokers.redis.broker import RedisBroker
from umbel.brokers.redis.ledger import RedisLedger
from umbel.brokers.redis.transport import RedisTransport

__all__ = ["RedisBroker", "RedisLedger", "RedisTransport"]
