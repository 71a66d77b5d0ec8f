"""Translates the errors of nats-py and JetStream into those of Umbel, with a remedy."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from nats import errors
from nats.js.errors import APIError

from umbel.errors import ConfigurationError, MessageTooLarge, UmbelError, Unavailable

NO_CONSUMER, NO_STREAM, NAME_TAKEN, SUBJECT_TAKEN = 10014, 10059, 10058, 10065

_DISABLED = "start the server with JetStream (nats-server -js), or enable it for this account"
_FULL = "free some space on the server, or raise max_file_store and the account's limits"
_NO_FILES = "the stream's files are missing; delete the stream, and it will be created again"

_REMEDIES = {
    10076: _DISABLED,
    10039: _DISABLED,
    10023: _FULL,
    10047: _FULL,
    10077: _FULL,
    10002: _FULL,
    10026: "raise the account's limit of consumers",
    10027: "raise the account's limit of streams",
    10005: "the cluster has too few servers for replicas; add servers or write fewer replicas",
}
_CONFIGURATION_REMEDIES = {
    SUBJECT_TAKEN: "another stream has this subject; delete it, or choose another namespace",
    10074: "this server is not a cluster; write replicas=1",
    10113: "Umbel's streams have no limit of bytes; remove max_bytes_required from the account",
    10099: "the stream has a consumer that is not Umbel's; delete that one",
    10100: "the stream has a consumer that is not Umbel's; delete that one",
}
_TOO_LARGE = 10054

_CHECK_SERVER = "check that the server runs and that host and port are right"
_CHECK_LOGIN = "check the user and password, token or creds of the URL"
_CHECK_RIGHTS = (
    "allow the user to publish to the namespace's subjects, $JS.API.>, $JS.ACK.> and _INBOX.>, and"
    " to subscribe to _INBOX.>"
)
_CHECK_TLS = "check the certificates: ca= for the server's, cert= and key= for ours"


@contextmanager
def translate_errors(label: str) -> Iterator[None]:
    """Raise errors of Umbel instead of those of nats-py, JetStream and sockets."""
    try:
        yield
    except UmbelError:
        raise
    except APIError as error:
        raise _translate(error, label) from error
    except TimeoutError as error:
        raise Unavailable(f"{label} did not answer in time; {_CHECK_SERVER}") from error
    except (errors.Error, OSError) as error:
        raise Unavailable(f"{label}: {_text(error)}; {_remedy(error)}") from error


def _translate(error: APIError, label: str) -> UmbelError:
    code, text = error.err_code, error.description
    if text is None:  # the server itself has responded: nothing is subscribed to the subject
        return Unavailable(f"{label}: JetStream does not respond; {_DISABLED}")
    if code == _TOO_LARGE:
        return MessageTooLarge(f"{label}: {text}; pass a reference instead of the data")
    if code in _CONFIGURATION_REMEDIES:
        return ConfigurationError(f"{label}: {text}; {_CONFIGURATION_REMEDIES[code]}")
    remedy = _NO_FILES if "no such file" in text else _REMEDIES.get(code or 0)
    return Unavailable(f"{label}: {text}" + (f"; {remedy}" if remedy else ""))


def _text(error: Exception) -> str:
    return " ".join(str(error).removeprefix("nats: ").split()) or type(error).__name__


def _remedy(error: Exception) -> str:
    text = str(error).lower()
    if isinstance(error, errors.SecureConnWantedError):
        return "let the server require TLS (no allow_non_tls), or write nats:// instead of tls://"
    if isinstance(error, (ssl.SSLError, ssl.CertificateError)):
        return _CHECK_TLS
    if "permissions violation" in text:
        return _CHECK_RIGHTS
    if "authorization" in text or "authentication" in text:
        return _CHECK_LOGIN
    if "maximum connections" in text:
        return "raise the server's max_connections"
    return _CHECK_SERVER
