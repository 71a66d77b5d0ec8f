"""Finds the driver's connection inside what callers pass as ``connection=``."""

from __future__ import annotations

from typing import Any

from umbel.errors import ConfigurationError


def unwrap(connection: Any) -> Any:
    """Return the driver's connection inside one of SQLAlchemy or Django, or the argument itself.

    A SQLAlchemy transaction is begun if there is none, so that the publish joins it: its ``commit``
    does nothing for a transaction that SQLAlchemy does not know of. A Django transaction is begun
    by ``transaction.atomic()``; without it, Django commits each statement separately.

    Raises:
        ConfigurationError: it is an async session, which only ``adelay`` accepts.
    """
    if made_by(connection, "django."):
        return _of_django(connection)
    if not made_by(connection, "sqlalchemy."):
        return connection
    if _is_async(connection):
        raise ConfigurationError("connection: an async session publishes with adelay, not delay")
    if hasattr(connection, "get_bind"):  # a Session has a connection
        connection = connection.connection()
    if not hasattr(connection, "in_transaction"):
        raise _no_connection(connection)
    if not connection.in_transaction():
        connection.begin()
    return connection.connection.driver_connection


async def aunwrap(connection: Any) -> Any:
    """``unwrap`` for async code, which may also pass async sessions of SQLAlchemy.

    Raises:
        ConfigurationError: it is a connection of Django, which are for sync code.
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
        # With asyncpg, SQLAlchemy begins the transaction with the first statement that it sends.
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
    """Return whether the class of the connection, or one of its bases, is from a package."""
    # Bases count, because applications and SQLModel have their own session classes.
    return any(kind.__module__.startswith(package) for kind in type(connection).__mro__)
