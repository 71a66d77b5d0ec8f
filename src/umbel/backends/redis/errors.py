"""The translation of redis-py's errors into Umbel's. No other module does this."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from redis import exceptions as redis_errors

from umbel.errors import BadMessage, ConfigurationError, UmbelError, Unavailable

_CHECK_SERVER = "check that the server runs and that host, port and password are right"
_MAYBE_TLS = "check that it runs; if it expects TLS, the URL begins with rediss://"
_ADD_PASSWORD = "it requires a password: put it into the URL, redis://user:password@host"
_REMEDY_BY_TYPE: tuple[tuple[type[Exception], str], ...] = (
    (redis_errors.AuthenticationError, "correct user and password in the URL"),
    (
        redis_errors.OutOfMemoryError,
        "its memory is full: raise maxmemory, or keep fewer records (keep_days, keep_count);"
        " keep maxmemory-policy noeviction, because any other policy loses jobs",
    ),
    (
        redis_errors.ReadOnlyError,
        "this is a replica, or has just become one; give the primary's address",
    ),
    (redis_errors.BusyLoadingError, "it is loading its data after a start; that ends by itself"),
    (
        redis_errors.MasterDownError,
        "this is a replica that lost its primary; give the primary's address",
    ),
    (redis_errors.ClusterDownError, "the cluster lacks a node; bring it back"),
)
_REMEDY_BY_TEXT = (
    ("Authentication required", _ADD_PASSWORD),
    ("NOAUTH", _ADD_PASSWORD),
    ("WRONGPASS", "correct user and password in the URL"),
    (
        "MISCONF",
        "it cannot save to its disk and therefore refuses writes; free space there, see its log",
    ),
    ("NOREPLICAS", "too few replicas are up (min-replicas-to-write); bring them back"),
    ("BUSY", "a script keeps it busy; that ends by itself, or with SCRIPT KILL"),
    ("WRONGTYPE", "a key of Umbel was overwritten with another type of value; delete that key"),
    ("max number of clients", "raise maxclients, or start fewer processes"),
    ("CERTIFICATE", "give ssl_ca_certs=FILE in the URL, with the authority that signed it"),
    ("SSL", "rediss:// is for a server that speaks TLS; use redis:// for one that does not"),
    ("failover", "that ends by itself; see the Sentinels' log if it does not"),
    ("no Sentinel", "check that the Sentinels run, and their hosts and the name in the URL"),
    ("closed by server", _MAYBE_TLS),
    ("reset by peer", _MAYBE_TLS),
)

DRIVER_ERRORS = (redis_errors.RedisError, OSError, UnicodeEncodeError)
"""The errors that a call to a server can raise. A TimeoutError is an OSError."""


@contextmanager
def translate_errors(label: str) -> Iterator[None]:
    """Raise Umbel's errors, with the remedy, instead of redis-py's. ``label`` names the server."""
    try:
        yield
    except UmbelError:
        raise
    except DRIVER_ERRORS as error:
        raise translate_error(error, label) from error


def translate_error(error: Exception, label: str) -> UmbelError:
    """Return Umbel's error, with the remedy, for one of ``DRIVER_ERRORS``."""
    if isinstance(error, UnicodeEncodeError):
        return BadMessage("value", f"cannot be written: {error}")
    if isinstance(error, redis_errors.RedisError):
        return _translate_redis_error(error, label)
    if isinstance(error, TimeoutError):
        return _too_slow(label)
    return Unavailable(f"{label} is out of reach ({error}); {_CHECK_SERVER}")


def _translate_redis_error(error: Exception, label: str) -> UmbelError:
    text = _brief(str(error)) or type(error).__name__
    if isinstance(error, redis_errors.NoPermissionError):
        return ConfigurationError(
            f"{label}: {text}; grant the user of the URL keys and channels umbel:* and the"
            " categories @read @write @scripting @pubsub @connection"
        )
    if isinstance(error, redis_errors.AskError):  # or MovedError
        return Unavailable(
            f"{label} is a node of a cluster, and this namespace is on {error.host}:"
            f"{error.port}; give that node's URL"
        )
    if isinstance(error, redis_errors.TimeoutError):
        return _too_slow(label)
    return Unavailable(f"{label}: {text}; {_remedy(error, text)}")


def _brief(text: str) -> str:
    """Return a message of redis-py in one line, without the address that the label has."""
    text = " ".join(text.split()).removesuffix(".")
    return re.sub(r"^Error -?\d+ connecting to \S+ ", "", text)


def _too_slow(label: str) -> Unavailable:
    # A server without TLS does not answer a client that begins a TLS handshake.
    tls = ", and that it speaks TLS there" if label.endswith("TLS") else ""
    return Unavailable(f"{label} did not answer in time; {_CHECK_SERVER}{tls}")


def _remedy(error: Exception, text: str) -> str:
    for part, remedy in _REMEDY_BY_TEXT:
        if part in text:
            return remedy
    for kind, remedy in _REMEDY_BY_TYPE:
        if isinstance(error, kind):
            return remedy
    return _CHECK_SERVER if isinstance(error, redis_errors.ConnectionError) else "see its log"
