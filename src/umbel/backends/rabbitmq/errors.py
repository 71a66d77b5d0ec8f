"""Translates pika's errors into ``Unavailable`` with a remedy."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from pika import exceptions  # type: ignore[import-untyped]

from umbel.errors import Unavailable

_NOT_FOUND = 404

_CHECK_SERVER = "check that the server runs and that host and port are right"
_REMEDIES = {
    320: "an operator closed the connection, or the server is shutting down; try again",
    403: "grant the user configure, write and read: rabbitmqctl set_permissions",
    405: "another connection holds the queue for itself; delete that queue",
    406: "see the server's log for what it does not accept",
    530: "create the virtual host (rabbitmqctl add_vhost) and grant the user access to it"
    " (rabbitmqctl set_permissions), or correct the URL",
    541: "see the server's log",
}


@contextmanager
def translate_errors(label: str) -> Iterator[None]:
    """Raise Unavailable instead of pika's errors."""
    try:
        yield
    except (exceptions.AMQPError, OSError) as error:
        if isinstance(error, Unavailable):
            raise
        raise to_unavailable(error, label) from error


def to_unavailable(error: BaseException, label: str) -> Unavailable:
    """Return the error to raise. A refusal is temporary, too: users can be added later."""
    error = _innermost(error)
    if isinstance(error, TimeoutError) and not error.args:
        return Unavailable(f"{label} did not answer in time; {_CHECK_SERVER}")
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, exceptions.ProbableAuthenticationError):
        remedy = (
            "it refuses this user and password; correct them in the URL. The user guest can"
            " connect from the server's own machine only"
        )
        return Unavailable(f"{label}: {remedy}")
    if isinstance(error, exceptions.ProbableAccessDeniedError):
        return Unavailable(f"{label}: {_server_text(error)}; {_REMEDIES[530]}")
    if isinstance(error, exceptions.IncompatibleProtocolError):
        return Unavailable(
            f"{label} does not answer in AMQP 0.9.1; check the port, and write amqps:// if it"
            " speaks TLS"
        )
    if isinstance(error, ssl.SSLError):
        return Unavailable(
            f"{label}: TLS failed ({text}); check that the port speaks TLS (usually 5671) and"
            " that cafile holds the certificate of the authority that signed the server's"
        )
    if isinstance(error, exceptions.NoFreeChannels):
        return Unavailable(
            f"{label} has no channel left: each queue and kind takes one; raise"
            " channel_max on the server, or let a worker serve fewer queues"
        )
    if isinstance(error, (exceptions.ConnectionClosed, exceptions.ChannelClosed)):
        remedy = _REMEDIES.get(error.reply_code, "try again")
        return Unavailable(f"{label}: {error.reply_text}; {remedy}")
    return Unavailable(f"{label}: {text}; {_CHECK_SERVER}")


def blocked_error(label: str, why: str) -> Unavailable:
    """Return the error for an alarm. The server reads no messages until the alarm is over."""
    return Unavailable(
        f"{label} takes no messages at the moment: {why}; free memory or disk space on the"
        " server (rabbitmqctl status names the alarm)"
    )


def is_missing(error: BaseException) -> bool:
    """Return whether the server closed a channel because a queue does not exist."""
    return isinstance(error, exceptions.ChannelClosedByBroker) and error.reply_code == _NOT_FOUND


def _innermost(error: BaseException) -> BaseException:
    """Return the cause inside the errors that pika wraps around failed attempts to connect."""
    while True:
        inner = getattr(error, "exception", None)
        if inner is None and getattr(error, "exceptions", None):
            inner = error.exceptions[-1]  # type: ignore[attr-defined]
        if inner is None and error.args and isinstance(error.args[0], BaseException):
            inner = error.args[0]
        if not isinstance(inner, BaseException):
            return error
        error = inner


def _server_text(error: BaseException) -> str:
    """Return the server's text from an error that pika has formatted."""
    text = str(error.args[0]) if error.args else str(error)
    return text.partition("'")[2].rpartition("'")[0] or text
