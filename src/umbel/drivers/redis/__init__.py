"""Redis and Valkey: few connections, one script a step, woken by a channel."""

from umbel.drivers.redis.connections import Connection, run
from umbel.drivers.redis.database import Database
from umbel.drivers.redis.doorbell import Doorbell
from umbel.drivers.redis.home import Home
from umbel.drivers.redis.listener import Listener
from umbel.drivers.redis.scripts import (
    Arguments,
    Script,
    octets,
    pack,
    root_of,
    scripts,
)
from umbel.drivers.redis.values import maybe, moment, text, whole

__all__ = [
    "Arguments",
    "Connection",
    "Database",
    "Doorbell",
    "Home",
    "Listener",
    "Script",
    "maybe",
    "moment",
    "octets",
    "pack",
    "root_of",
    "run",
    "scripts",
    "text",
    "whole",
]
