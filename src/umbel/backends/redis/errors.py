"""redis-py's errors become ours, here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis import exceptions as theirs

from umbel.errors import BadMessage, ConfigurationError, UmbelError, Unavailable

_CHECK_SERVER = "check that the server runs and that host, port and password are right"
_MAYBE_TLS = "check that it runs; where it expects TLS, the URL begins with rediss://"
_ADD_PASSWORD = "it wants a password: put it into the URL, redis://user:password@host"
_BY_KIND: tuple[tuple[type[Exception], str], ...] = (
    (theirs.AuthenticationError, "correct user and password in the URL"),
    (
        theirs.OutOfMemoryError,
        "its memory is full: raise maxmemory, or remember less (keep_days, keep_count);"
        " keep maxmemory-policy noeviction, anything else loses jobs",
    ),
    (theirs.ReadOnlyError, "this is a replica, or has just become one; give the primary's address"),
    (theirs.BusyLoadingError, "it reads its data after a start; that ends by itself"),
    (theirs.MasterDownError, "this is a replica that lost its primary; give the primary's address"),
    (theirs.ClusterDownError, "the cluster lacks a node; bring it back"),
)
_BY_WORD = (
    ("Authentication required", _ADD_PASSWORD),
    ("NOAUTH", _ADD_PASSWORD),
    ("WRONGPASS", "correct user and password in the URL"),
    ("MISCONF", "it cannot save to its disk and so takes nothing; free space there, see its log"),
    ("NOREPLICAS", "too few replicas are up (min-replicas-to-write); bring them back"),
    ("BUSY", "somebody's script keeps it busy; that ends by itself, or with SCRIPT KILL"),
    ("WRONGTYPE", "somebody wrote another kind of value over a key of ours; delete that key"),
    ("max number of clients", "raise maxclients, or start fewer processes"),
    ("CERTIFICATE", "give ssl_ca_certs=FILE in the URL, with the authority that signed it"),
    ("SSL", "rediss:// is for a server that speaks TLS; use redis:// for one that does not"),
    ("failover", "that ends by itself; see the Sentinels' log if it does not"),
    ("no Sentinel", "check that the Sentinels run, and their places and the name in the URL"),
    ("closed by server", _MAYBE_TLS),
    ("reset by peer", _MAYBE_TLS),
)

FAULTS = (theirs.RedisError, OSError, UnicodeEncodeError)
"""What can go wrong on the way to a server and back. A TimeoutError is an OSError."""


@contextmanager
def explaining(address: str) -> Iterator[None]:
    """redis-py's errors come out as ours, with the remedy."""
    try:
        yield
    except UmbelError:
        raise
    except FAULTS as error:
        raise explained(error, address) from error


def explained(error: Exception, address: str) -> UmbelError:
    """Ours for one of ``FAULTS``, with the remedy."""
    if isinstance(error, UnicodeEncodeError):
        return BadMessage("value", f"cannot be written: {error}")
    if isinstance(error, theirs.RedisError):
        return explain(error, address)
    if isinstance(error, TimeoutError):
        return _too_slow(address)
    return Unavailable(f"{address} is out of reach ({error}); {_CHECK_SERVER}")


def explain(error: Exception, address: str) -> UmbelError:
    """Ours for theirs."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, theirs.NoPermissionError):
        return ConfigurationError(
            f"{address}: {text}; grant the user of the URL keys and channels umbel:* and the"
            " categories @read @write @scripting @pubsub @connection"
        )
    if isinstance(error, theirs.AskError):  # or MovedError
        return Unavailable(
            f"{address} is a node of a cluster, and this namespace lives on {error.host}:"
            f"{error.port}; give that node's URL"
        )
    if isinstance(error, theirs.TimeoutError):
        return _too_slow(address)
    return Unavailable(f"{address}: {text}; {_remedy(error, text)}")


def _too_slow(address: str) -> Unavailable:
    # A server without TLS says nothing to who begins to speak it.
    tls = ", and that it speaks TLS there" if address.endswith("TLS") else ""
    return Unavailable(f"{address} did not answer in time; {_CHECK_SERVER}{tls}")


def _remedy(error: Exception, text: str) -> str:
    for word, remedy in _BY_WORD:
        if word in text:
            return remedy
    for kind, remedy in _BY_KIND:
        if isinstance(error, kind):
            return remedy
    return _CHECK_SERVER if isinstance(error, theirs.ConnectionError) else "see its log"
