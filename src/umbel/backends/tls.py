"""TLS contexts from the files that the options of a URL name."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from umbel.errors import ConfigurationError

OPTIONS = ("cafile", "certfile", "keyfile", "verify", "server_name")


def client(options: Mapping[str, str]) -> ssl.SSLContext:
    """Return a context for clients. It trusts ``cafile`` or the system, and presents ``certfile``.

    Raises:
        ConfigurationError: it names the option.
    """
    verify = options.get("verify", "true")
    if verify not in ("true", "false"):
        raise ConfigurationError(f"verify={verify!r}: give true or false")
    context = _create_context(options.get("cafile"), ssl.Purpose.SERVER_AUTH)
    if verify == "false":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _load_certificate(context, options)
    return context


def server(options: Mapping[str, str]) -> ssl.SSLContext:
    """Return a context for servers. It accepts only peers whose certificate ``cafile`` signed.

    Raises:
        ConfigurationError: it names the option.
    """
    for name in ("cafile", "certfile"):
        if name not in options:
            raise ConfigurationError(
                f"{name}: is missing; a server with mutual TLS needs cafile, certfile and keyfile"
            )
    context = _create_context(options["cafile"], ssl.Purpose.CLIENT_AUTH)
    context.verify_mode = ssl.CERT_REQUIRED
    _load_certificate(context, options)
    return context


def _create_context(cafile: str | None, purpose: ssl.Purpose) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(purpose, cafile=cafile)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigurationError(f"cafile={cafile!r}: {error}; give a PEM file") from None


def _load_certificate(context: ssl.SSLContext, options: Mapping[str, str]) -> None:
    certfile, keyfile = options.get("certfile"), options.get("keyfile")
    if certfile is None:
        if keyfile is not None:
            raise ConfigurationError("keyfile: give the certfile that it belongs to, too")
        return
    try:
        # Without this, OpenSSL asks for the password of an encrypted key on the terminal.
        context.load_cert_chain(certfile, keyfile, password="")
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"certfile={certfile!r}, keyfile={keyfile!r}: {error}; give PEM files, unencrypted"
        ) from None
