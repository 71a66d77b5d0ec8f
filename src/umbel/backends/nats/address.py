"""The address of a NATS server or cluster: hosts, login, TLS and replicas."""

from __future__ import annotations

import ssl
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from umbel.errors import ConfigurationError
from umbel.urls import unknown_options

_PORT = 4222
_EXAMPLE = "nats://user:password@host:4222?replicas=1"
_TLS_FILES = ("ca", "cert", "key")
_OPTIONS = ("replicas", *_TLS_FILES, "creds")
_MAX_REPLICAS = 5


class NatsAddress:
    """The address of a NATS server or cluster. Shared by every transport of an application.

    ``nats://user:password@host:4222,host:4222?replicas=3``, or ``tls://``, which requires
    encryption. A user without a password is a token. ``ca``, ``cert`` and ``key`` are files for
    TLS, ``creds`` is a file of credentials; ``replicas`` is the number of servers of a cluster
    that store each message.

    Raises:
        ConfigurationError: the URL is wrong; the error names the part.
    """

    def __init__(self, url: str) -> None:
        self.requires_tls, login, hosts, query = _split(url)
        options = _options(url, query)
        self.servers = [_server(host) for host in hosts.split(",")]
        self.replicas = _replicas(options.get("replicas", "1"))
        self.login = _login(login) | _credentials(options.get("creds"))
        self.label = f"NATS at {hosts}"
        self._tls_files = {name: options[name] for name in _TLS_FILES if name in options}
        _check_tls_files(self._tls_files)

    def new_ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS settings of one connection; None for the defaults."""
        if not self._tls_files and not self.requires_tls:
            return None
        return _new_ssl_context(self._tls_files)


def _split(url: str) -> tuple[bool, str, str, str]:
    """Return whether TLS is required, the login, the hosts, and the query."""
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in ("nats", "tls"):
        start = f"starts with {scheme}://" if mark else "has no scheme"
        raise ConfigurationError(f"the NATS URL {start}; write {_EXAMPLE}, or tls://")
    place, _, query = rest.partition("?")
    place, _, path = place.partition("/")
    if path:
        raise ConfigurationError(
            "a NATS URL has no path; write a slash in a password as %2F, and the namespace as a"
            " setting of its own"
        )
    login, _, hosts = place.rpartition("@")
    return scheme == "tls", login, hosts, query


def _options(url: str, query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS:
            raise ConfigurationError(
                f"{unknown_options([name], url)}: unknown in a NATS URL; use {', '.join(_OPTIONS)}"
            )
    return options


def _server(host: str) -> str:
    """Return the URL of one server, for nats-py."""
    try:
        found: SplitResult = urlsplit(f"//{host}")
        name, port = found.hostname, found.port or _PORT
    except ValueError:  # the port is not a number, or an IPv6 address lacks its bracket
        name, port = None, _PORT
    if not name:
        raise ConfigurationError(f"the NATS URL's host is {host!r}; write {_EXAMPLE}")
    return f"nats://[{name}]:{port}" if ":" in name else f"nats://{name}:{port}"


def _login(login: str) -> dict[str, Any]:
    """Return the arguments of nats-py's ``connect``."""
    if not login:
        return {}
    user, colon, password = login.partition(":")
    if not colon:
        return {"token": unquote(user)}
    return {"user": unquote(user), "password": unquote(password)}


def _credentials(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    _check_file("creds", path)
    if find_spec("nkeys") is None:
        raise ConfigurationError("creds: needs another package; pip install nkeys")
    return {"user_credentials": path}


def _replicas(value: str) -> int:
    if not value.isdecimal() or not 1 <= int(value) <= _MAX_REPLICAS:
        raise ConfigurationError(f"replicas={value!r}: give a number from 1 to {_MAX_REPLICAS}")
    return int(value)


def _check_tls_files(files: dict[str, str]) -> None:
    if ("cert" in files) != ("key" in files):
        raise ConfigurationError("cert and key: give both, or neither")
    for name, path in files.items():
        _check_file(name, path)
    try:
        _new_ssl_context(files)
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"ca, cert and key: TLS cannot use them ({error}); give files in PEM format"
        ) from None


def _new_ssl_context(files: dict[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.get("ca"))
    if "cert" in files:
        context.load_cert_chain(files["cert"], files["key"])
    return context


def _check_file(name: str, path: str) -> None:
    if not Path(path).is_file():
        raise ConfigurationError(f"{name}={path!r}: no such file; give the path of a file")
