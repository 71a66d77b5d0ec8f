"""The plain driver connection inside what callers hand over as ``connection=``."""

from __future__ import annotations

from typing import Any

from umbel.errors import ConfigurationError


def unwrap(connection: Any) -> Any:
    """The driver's own connection of a SQLAlchemy session or connection, or the thing itself.

    It begins its transaction if it has none, so that what is published joins it: SQLAlchemy's
    ``commit`` does nothing for a transaction that it does not know of.

    Raises:
        ConfigurationError: an async session in sync code; ``adelay`` takes those.
    """
    if not _is_sqlalchemy(connection):
        return connection
    if _is_async(connection):
        raise ConfigurationError("connection: an async session publishes with adelay, not delay")
    if hasattr(connection, "get_bind"):  # a Session: ask it for its connection first
        connection = connection.connection()
    if not hasattr(connection, "in_transaction"):
        raise _no_connection(connection)
    if not connection.in_transaction():
        connection.begin()
    return connection.connection.driver_connection


async def aunwrap(connection: Any) -> Any:
    """``unwrap`` for async code, which may also hold SQLAlchemy's async sessions."""
    if not _is_async(connection):
        return unwrap(connection)
    if hasattr(connection, "get_bind"):
        connection = await connection.connection()
    if not hasattr(connection, "get_raw_connection"):
        raise _no_connection(connection)
    if not connection.in_transaction():
        await connection.begin()
    raw = await connection.get_raw_connection()
    return raw.driver_connection


def _no_connection(thing: Any) -> ConfigurationError:
    return ConfigurationError(
        f"connection={type(thing).__name__}: give a connection (engine.connect()) or a session"
    )


def _is_sqlalchemy(connection: Any) -> bool:
    return _made_by(connection, "sqlalchemy.")


def _is_async(connection: Any) -> bool:
    return _made_by(connection, "sqlalchemy.ext.asyncio")


def _made_by(connection: Any, package: str) -> bool:
    # Through the bases: applications and SQLModel have session classes of their own.
    return any(kind.__module__.startswith(package) for kind in type(connection).__mro__)
