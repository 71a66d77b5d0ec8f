"""Where the streams are: the servers, who we are to them, and how often they keep a message."""

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
_OURS = ("replicas", "ca", "cert", "key", "creds")
_MOST_REPLICAS = 5


class Home:
    """The address of a NATS server or cluster. Shared by every transport of an application.

    ``nats://user:password@host:4222,host:4222?replicas=3``, or ``tls://``, which insists on
    encryption. A user without a password is a token. ``ca``, ``cert`` and ``key`` are files for
    TLS, ``creds`` is a file of credentials; ``replicas`` is how many servers of a cluster keep
    each message.

    Raises:
        ConfigurationError: the URL is wrong; it names the part.
    """

    def __init__(self, url: str) -> None:
        self.tls, who, hosts, query = _split(url)
        given = _parameters(url, query)
        self.servers = [_server(host) for host in hosts.split(",")]
        self.replicas = _replicas(given.get("replicas", "1"))
        self.login = _login(who) | _credentials(given.get("creds"))
        self.context = _context(given)
        self.address = f"NATS at {hosts}"


def _split(url: str) -> tuple[bool, str, str, str]:
    """Whether to encrypt, who we are, the hosts, and the parameters."""
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
    who, _, hosts = place.rpartition("@")
    return scheme == "tls", who, hosts, query


def _parameters(url: str, query: str) -> dict[str, str]:
    given = dict(parse_qsl(query, keep_blank_values=True))
    for name in given:
        if name not in _OURS:
            raise ConfigurationError(
                f"{unknown_options([name], url)}: no parameter of a NATS URL;"
                f" there are {', '.join(_OURS)}"
            )
    return given


def _server(host: str) -> str:
    """One server, as nats-py wants it."""
    try:
        found: SplitResult = urlsplit(f"//{host}")
        name, port = found.hostname, found.port or _PORT
    except ValueError:  # a port that is no number, or an IPv6 address without its end
        name, port = None, _PORT
    if not name:
        raise ConfigurationError(f"the NATS URL's host is {host!r}; write {_EXAMPLE}")
    return f"nats://[{name}]:{port}" if ":" in name else f"nats://{name}:{port}"


def _login(who: str) -> dict[str, Any]:
    if not who:
        return {}
    user, colon, password = who.partition(":")
    if not colon:
        return {"token": unquote(user)}
    return {"user": unquote(user), "password": unquote(password)}


def _credentials(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    _check_file("creds", path)
    if find_spec("nkeys") is None:
        raise ConfigurationError("creds: needs one package more; pip install nkeys")
    return {"user_credentials": path}


def _replicas(value: str) -> int:
    if not value.isdecimal() or not 1 <= int(value) <= _MOST_REPLICAS:
        raise ConfigurationError(f"replicas={value!r}: give a number from 1 to {_MOST_REPLICAS}")
    return int(value)


def _context(given: dict[str, str]) -> ssl.SSLContext | None:
    """How to check the server's certificate, and which one to show it. None for the usual."""
    if not given.keys() & {"ca", "cert", "key"}:
        return None
    if ("cert" in given) != ("key" in given):
        raise ConfigurationError("cert and key: give both, or neither")
    for name in given.keys() & {"ca", "cert", "key"}:
        _check_file(name, given[name])
    try:
        context = ssl.create_default_context(cafile=given.get("ca"))
        if "cert" in given:
            context.load_cert_chain(given["cert"], given["key"])
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"ca, cert and key: not what TLS needs ({error}); give files in PEM form"
        ) from None
    return context


def _check_file(name: str, path: str) -> None:
    if not Path(path).is_file():
        raise ConfigurationError(f"{name}={path!r}: no such file; give the path of one")
