"""pika's errors become ours, here and nowhere else."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from pika import exceptions  # type: ignore[import-untyped]

from umbel.errors import Unavailable

NOT_FOUND = 404

_CHECK_SERVER = "check that the server runs and that host and port are right"
_REMEDIES = {
    320: "an operator closed the connection, or the server shuts down; try again",
    403: "grant the user configure, write and read: rabbitmqctl set_permissions",
    405: "another connection holds the queue for itself; delete that queue",
    406: "see the server's log for what it does not accept",
    530: "create the virtual host (rabbitmqctl add_vhost) and grant the user access to it"
    " (rabbitmqctl set_permissions), or correct the URL",
    541: "see the server's log",
}


@contextmanager
def explaining(address: str) -> Iterator[None]:
    """pika's errors come out as ours, with the remedy."""
    try:
        yield
    except (exceptions.AMQPError, OSError) as error:
        if isinstance(error, Unavailable):
            raise
        raise explain(error, address) from error


def explain(error: BaseException, address: str) -> Unavailable:
    """Ours for theirs. A refusal may pass as well: users and virtual hosts can be made later."""
    error = _innermost(error)
    if isinstance(error, TimeoutError) and not error.args:
        return Unavailable(f"{address} did not answer in time; {_CHECK_SERVER}")
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, exceptions.ProbableAuthenticationError):
        remedy = (
            "it refuses this user and password; correct them in the URL. The user guest may come"
            " from the server's own machine only"
        )
        return Unavailable(f"{address}: {remedy}")
    if isinstance(error, exceptions.ProbableAccessDeniedError):
        return Unavailable(f"{address}: {_said(error)}; {_REMEDIES[530]}")
    if isinstance(error, exceptions.IncompatibleProtocolError):
        return Unavailable(
            f"{address} does not answer in AMQP 0.9.1; check the port, and write amqps:// if it"
            " speaks TLS"
        )
    if isinstance(error, ssl.SSLError):
        return Unavailable(
            f"{address}: TLS failed ({text}); check that the port speaks TLS (usually 5671) and"
            " that cafile holds the certificate of whoever signed the server's"
        )
    if isinstance(error, exceptions.NoFreeChannels):
        return Unavailable(
            f"{address} has no channel left: there is one for each queue and kind; raise"
            " channel_max on the server, or let a worker serve fewer queues"
        )
    if isinstance(error, (exceptions.ConnectionClosed, exceptions.ChannelClosed)):
        remedy = _REMEDIES.get(error.reply_code, "try again")
        return Unavailable(f"{address}: {error.reply_text}; {remedy}")
    return Unavailable(f"{address}: {text}; {_CHECK_SERVER}")


def is_blocked(address: str, why: str) -> Unavailable:
    """Ours for an alarm of the server, which reads no messages until it is over."""
    return Unavailable(
        f"{address} takes no messages at the moment: {why}; free memory or disk space on the"
        " server (rabbitmqctl status names the alarm)"
    )


def is_missing(error: BaseException) -> bool:
    """Whether a channel was closed because what it asked for is not there."""
    return isinstance(error, exceptions.ChannelClosedByBroker) and error.reply_code == NOT_FOUND


def _innermost(error: BaseException) -> BaseException:
    """What happened, out of the wrappings of pika's attempts to connect."""
    while True:
        inner = getattr(error, "exception", None)
        if inner is None and getattr(error, "exceptions", None):
            inner = error.exceptions[-1]  # type: ignore[attr-defined]
        if inner is None and error.args and isinstance(error.args[0], BaseException):
            inner = error.args[0]
        if not isinstance(inner, BaseException):
            return error
        error = inner


def _said(error: BaseException) -> str:
    """The server's own words in an error that pika has turned into text."""
    text = str(error.args[0]) if error.args else str(error)
    return text.partition("'")[2].rpartition("'")[0] or text
