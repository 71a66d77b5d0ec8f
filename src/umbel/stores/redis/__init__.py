"""The store's roles on Redis."""

from umbel.stores.redis.control import RedisControl
from umbel.stores.redis.deployments import RedisDeployments
from umbel.stores.redis.gates import RedisGates
from umbel.stores.redis.records import RedisRecords
from umbel.stores.redis.registry import RedisRegistry
from umbel.stores.redis.routes import RedisRoutes
from umbel.stores.redis.steps import RedisSteps

__all__ = [
    "RedisControl",
    "RedisDeployments",
    "RedisGates",
    "RedisRecords",
    "RedisRegistry",
    "RedisRoutes",
    "RedisSteps",
]
