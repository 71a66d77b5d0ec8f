"""TLS from the files that a URL names."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from umbel.errors import ConfigurationError

OPTIONS = ("cafile", "certfile", "keyfile", "verify", "server_name")


def client(options: Mapping[str, str]) -> ssl.SSLContext:
    """For whoever connects: trusts ``cafile``, or the system; shows ``certfile`` if there is one.

    Raises:
        ConfigurationError: it names the option.
    """
    verify = options.get("verify", "true")
    if verify not in ("true", "false"):
        raise ConfigurationError(f"verify={verify!r}: give true or false")
    context = _trusting(options.get("cafile"), ssl.Purpose.SERVER_AUTH)
    if verify == "false":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _identify(context, options)
    return context


def server(options: Mapping[str, str]) -> ssl.SSLContext:
    """For whoever listens: only peers with a certificate that ``cafile`` vouches for come in.

    Raises:
        ConfigurationError: it names the option.
    """
    for name in ("cafile", "certfile"):
        if name not in options:
            raise ConfigurationError(
                f"{name}: is missing; who listens proves itself and asks for"
                " proof: give cafile, certfile and keyfile"
            )
    context = _trusting(options["cafile"], ssl.Purpose.CLIENT_AUTH)
    context.verify_mode = ssl.CERT_REQUIRED
    _identify(context, options)
    return context


def _trusting(cafile: str | None, purpose: ssl.Purpose) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(purpose, cafile=cafile)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigurationError(f"cafile={cafile!r}: {error}; give a PEM file") from None


def _identify(context: ssl.SSLContext, options: Mapping[str, str]) -> None:
    certfile, keyfile = options.get("certfile"), options.get("keyfile")
    if certfile is None:
        if keyfile is not None:
            raise ConfigurationError("keyfile: give the certfile that it belongs to, too")
        return
    try:
        # With no password an encrypted key would be asked for on the terminal.
        context.load_cert_chain(certfile, keyfile, password="")
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"certfile={certfile!r}, keyfile={keyfile!r}: {error}; give PEM files, unencrypted"
        ) from None
