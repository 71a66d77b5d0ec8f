"""psycopg's errors become ours, here and nowhere else."""

from __future__ import annotations

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
"""Nothing happened because somebody else came first; the same again is right."""

_NO_SCHEMA = (
    errors.UndefinedTable,
    errors.UndefinedColumn,
    errors.UndefinedFunction,
    errors.InvalidSchemaName,
)
_REMEDIES: dict[type[psycopg.Error], str] = {
    errors.TooManyConnections: "raise max_connections, or put pgbouncer in front",
    errors.DiskFull: "free some space on the server",
    errors.ReadOnlySqlTransaction: "this is a standby; add target_session_attrs=read-write",
    errors.QueryCanceled: "a statement_timeout is set for this role; raise it",
    errors.DeadlockDetected: "other transactions lock the same jobs; try again",
    errors.SerializationFailure: "other transactions changed the same jobs; try again",
}
_CHECK_SERVER = "check that the server runs and that host, user and password are right"


@contextmanager
def explaining(address: str) -> Iterator[None]:
    """psycopg's errors come out as ours, with the remedy."""
    try:
        yield
    except psycopg.Error as error:
        raise explain(error, address) from error
    except TimeoutError as error:
        if isinstance(error, UmbelError):
            raise
        raise Unavailable(f"{address} did not answer in time; {_CHECK_SERVER}") from error


def explain(error: psycopg.Error, address: str) -> UmbelError:
    """Ours for theirs."""
    text = error.diag.message_primary or " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, _NO_SCHEMA):
        return SchemaError(
            f"{address} has no Umbel schema, or an older one ({text}); run: umbel db migrate"
        )
    if isinstance(error, errors.InsufficientPrivilege):
        return ConfigurationError(f"{address}: {text}; grant it to the role of the URL")
    if isinstance(error, (psycopg.DataError, psycopg.IntegrityError)):
        return BadMessage(error.diag.column_name or error.diag.constraint_name or "value", text)
    remedy = next((r for kind, r in _REMEDIES.items() if isinstance(error, kind)), None)
    if remedy is None and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        remedy = _CHECK_SERVER
    return Unavailable(f"{address}: {text}" + (f"; {remedy}" if remedy else ""))
