"""The store's roles on Redis."""

from umbel.stores.redis.control import RedisControl
from umbel.stores.redis.records import RedisRecords
from umbel.stores.redis.registry import RedisRegistry

__all__ = ["RedisControl", "RedisRecords", "RedisRegistry"]
