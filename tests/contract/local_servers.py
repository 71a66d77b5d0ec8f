"""The URLs of the servers that the contract tests use."""

from __future__ import annotations

import os
import socket

import pytest

HOST = "127.0.0.1"
PORTS = {
    "rabbitmq": int(os.environ.get("UMBEL_TEST_RABBITMQ_PORT", "5672")),
    "nats": int(os.environ.get("UMBEL_TEST_NATS_PORT", "4222")),
    "postgres": 5432,
    "redis": 6379,
}
POSTGRES_URL = os.environ.get("UMBEL_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
REDIS_URL = os.environ.get("UMBEL_TEST_REDIS", "redis://127.0.0.1:6379/0")
NATS_URL = f"nats://{HOST}:{PORTS['nats']}"
NEVER = 3600.0
"""Seconds between safety polls: so many that a test passes only if a notification arrives."""


def needs(*servers: str) -> None:
    """Skip the test if one of these servers does not answer."""
    for server in servers:
        try:
            socket.create_connection((HOST, PORTS[server]), 2).close()
        except OSError as error:
            pytest.skip(f"not run: pairs with {server}; it does not answer ({error})")
