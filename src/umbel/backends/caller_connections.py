"""The plain driver connection inside what callers hand over as ``connection=``."""

from __future__ import annotations

from typing import Any

from umbel.errors import ConfigurationError


def unwrap(connection: Any) -> Any:
    """The driver's own connection of SQLAlchemy's or Django's, or the thing itself.

    SQLAlchemy begins its transaction if it has none, so that what is published joins it: its
    ``commit`` does nothing for a transaction that it does not know of. Django's is begun by
    ``transaction.atomic()``; without that, it commits each statement by itself.

    Raises:
        ConfigurationError: an async session in sync code; ``adelay`` takes those.
    """
    if made_by(connection, "django."):
        return _of_django(connection)
    if not made_by(connection, "sqlalchemy."):
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
    """``unwrap`` for async code, which may also hold SQLAlchemy's async sessions.

    Raises:
        ConfigurationError: Django's connections belong to sync code.
    """
    if made_by(connection, "django."):
        raise ConfigurationError(
            "connection: Django's connections are for sync code; publish with delay, inside"
            " sync_to_async"
        )
    if not _is_async(connection):
        return unwrap(connection)
    if hasattr(connection, "get_bind"):
        connection = await connection.connection()
    if not hasattr(connection, "get_raw_connection"):
        raise _no_connection(connection)
    if not connection.in_transaction():
        await connection.begin()
    driver = (await connection.get_raw_connection()).driver_connection
    if made_by(driver, "asyncpg.") and not driver.is_in_transaction():
        # With asyncpg, SQLAlchemy begins in truth with the first statement that it sends itself.
        await connection.exec_driver_sql("select 1")
    return driver


def _of_django(connection: Any) -> Any:
    if not hasattr(connection, "ensure_connection"):
        raise ConfigurationError(
            f"connection={type(connection).__name__}: give django.db.connection, or one of"
            " django.db.connections"
        )
    connection.ensure_connection()
    return connection.connection


def _no_connection(thing: Any) -> ConfigurationError:
    return ConfigurationError(
        f"connection={type(thing).__name__}: give a connection (engine.connect()) or a session"
    )


def _is_async(connection: Any) -> bool:
    return made_by(connection, "sqlalchemy.ext.asyncio")


def made_by(connection: Any, package: str) -> bool:
    """Whether its class, or one that it is derived from, is of a package."""
    # Through the bases: applications and SQLModel have session classes of their own.
    return any(kind.__module__.startswith(package) for kind in type(connection).__mro__)
