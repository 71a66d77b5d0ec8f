"""The plain driver connection inside what callers hand over as ``connection=``."""

from __future__ import annotations

from typing import Any

from umbel.errors import ConfigurationError


def unwrap(connection: Any) -> Any:
    """The driver's own connection of a SQLAlchemy session or connection, or the thing itself.

    The session begins its transaction if it has none, so that what is published joins it.

    Raises:
        ConfigurationError: an async session in sync code; ``adelay`` takes those.
    """
    if not _is_sqlalchemy(connection):
        return connection
    if type(connection).__module__.startswith("sqlalchemy.ext.asyncio"):
        raise ConfigurationError("connection: an async session publishes with adelay, not delay")
    if hasattr(connection, "get_bind"):  # a Session: ask it for its connection first
        connection = connection.connection()
    return connection.connection.driver_connection


async def aunwrap(connection: Any) -> Any:
    """``unwrap`` for async code, which may also hold SQLAlchemy's async sessions."""
    if not type(connection).__module__.startswith("sqlalchemy.ext.asyncio"):
        return unwrap(connection)
    if hasattr(connection, "sync_session"):
        connection = await connection.connection()
    raw = await connection.get_raw_connection()
    return raw.driver_connection


def _is_sqlalchemy(connection: Any) -> bool:
    return any(kind.__module__.startswith("sqlalchemy.") for kind in type(connection).__mro__)
