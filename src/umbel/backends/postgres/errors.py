"""Translation of psycopg's errors into Umbel's. No other module does this."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors

from umbel.errors import (
    BadMessage,
    ConfigurationError,
    SchemaError,
    UmbelError,
    Unavailable,
)

CONFLICTS = (errors.SerializationFailure, errors.DeadlockDetected)
"""Another transaction came first, and nothing has happened: retry."""

_NO_SCHEMA = (
    errors.UndefinedTable,
    errors.UndefinedColumn,
    errors.UndefinedFunction,
    errors.InvalidSchemaName,
)
_MORE_CONNECTIONS = (
    "an idle worker needs 3 connections and a publisher 1: raise max_connections or the limit of"
    " the role, or put pgbouncer in front"
)
_REMEDIES: dict[type[psycopg.Error], str] = {
    errors.TooManyConnections: _MORE_CONNECTIONS,
    errors.DiskFull: "free some space on the server",
    errors.ReadOnlySqlTransaction: "this is a standby; add target_session_attrs=read-write",
    errors.QueryCanceled: "a statement_timeout is set for this role; raise it",
    errors.LockNotAvailable: "another transaction keeps the same rows locked; end it",
    errors.DeadlockDetected: "other transactions lock the same jobs; try again",
    errors.SerializationFailure: "other transactions changed the same jobs; try again",
}
_CHECK_SERVER = "check that the server runs and that host, user and password are right"

_CONNECT_REMEDIES = (
    (
        r'database "[^"]*" does not exist',
        "create it with createdb, or correct the database in the URL",
    ),
    (r"too many (clients|connections)|connection slots", _MORE_CONNECTIONS),
)


@contextmanager
def translate_errors(label: str) -> Iterator[None]:
    """Translate psycopg's errors that the block raises, with the remedy."""
    try:
        yield
    except psycopg.Error as error:
        raise translate_error(error, label) from error
    except TimeoutError as error:
        if isinstance(error, UmbelError):
            raise
        raise Unavailable(f"{label} did not answer in time; {_CHECK_SERVER}") from error


def translate_error(error: psycopg.Error, label: str) -> UmbelError:
    """Return the UmbelError for an error of psycopg."""
    text = error.diag.message_primary or _brief(str(error)) or type(error).__name__
    if isinstance(error, _NO_SCHEMA):
        return SchemaError(
            f"{label} has no Umbel schema, or an older one ({text}); run: umbel db migrate"
        )
    if isinstance(error, errors.InsufficientPrivilege):
        return ConfigurationError(f"{label}: {text}; grant it to the role of the URL")
    if isinstance(error, (psycopg.DataError, psycopg.IntegrityError)):
        return BadMessage(error.diag.column_name or error.diag.constraint_name or "value", text)
    remedy = next((r for kind, r in _REMEDIES.items() if isinstance(error, kind)), None)
    if remedy is None and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        # An error while connecting has no class of its own.
        found = (remedy for pattern, remedy in _CONNECT_REMEDIES if re.search(pattern, text))
        remedy = next(found, _CHECK_SERVER)
    return Unavailable(f"{label}: {text}" + (f"; {remedy}" if remedy else ""))


def _brief(text: str) -> str:
    """Return a message of libpq in one line, without what the label and the remedy say."""
    text = " ".join(text.split()).removeprefix("connection failed: ")
    return text.partition(" Is the server running")[0]
