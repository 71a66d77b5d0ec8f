"""The errors of nats-py and of JetStream become ours, here and nowhere else."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from nats import errors

from umbel.errors import ConfigurationError, MessageTooLarge, UmbelError, Unavailable


class Refused(Exception):
    """JetStream said no. ``code`` is its own number for the reason."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


NO_RESPONDERS = 503
"""Not one of JetStream's codes: nobody listens on the subject."""
NO_CONSUMER, NO_STREAM, NAME_TAKEN, SUBJECT_TAKEN = 10014, 10059, 10058, 10065

_DISABLED = "start the server with JetStream (nats-server -js), or enable it for this account"
_FULL = "free some space on the server, or raise max_file_store and the account's limits"
_NO_FILES = "the stream's files were deleted under the server; delete the stream, it is made anew"
_REMEDIES = {
    NO_RESPONDERS: _DISABLED,
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
_WRONG = {
    SUBJECT_TAKEN: "another stream has this subject; delete it, or choose another namespace",
    10074: "this server is no cluster; write replicas=1",
    10113: "Umbel's streams have no limit of bytes; lift max_bytes_required from the account",
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
def explaining(address: str) -> Iterator[None]:
    """Their errors come out as ours, with the remedy."""
    try:
        yield
    except UmbelError:
        raise
    except Refused as error:
        raise _explain(error, address) from error
    except TimeoutError as error:
        raise Unavailable(f"{address} did not answer in time; {_CHECK_SERVER}") from error
    except (errors.Error, OSError) as error:
        raise Unavailable(f"{address}: {_text(error)}; {_remedy(error)}") from error


def _explain(error: Refused, address: str) -> UmbelError:
    """Ours for JetStream's."""
    if error.code == _TOO_LARGE:
        return MessageTooLarge(f"{address}: {error}; pass a reference instead of the data")
    if error.code in _WRONG:
        return ConfigurationError(f"{address}: {error}; {_WRONG[error.code]}")
    remedy = _NO_FILES if "no such file" in str(error) else _REMEDIES.get(error.code)
    return Unavailable(f"{address}: {error}" + (f"; {remedy}" if remedy else ""))


def _text(error: Exception) -> str:
    return " ".join(str(error).removeprefix("nats: ").split()) or type(error).__name__


def _remedy(error: Exception) -> str:
    text = str(error).lower()
    if isinstance(error, errors.SecureConnWantedError):
        return "give the server a certificate, or write nats:// instead of tls://"
    if isinstance(error, (ssl.SSLError, ssl.CertificateError)):
        return _CHECK_TLS
    if "permissions violation" in text:
        return _CHECK_RIGHTS
    if "authorization" in text or "authentication" in text:
        return _CHECK_LOGIN
    if "maximum connections" in text:
        return "raise the server's max_connections"
    return _CHECK_SERVER
