"""The address of an AMQP 1.0 peer, and how to connect to it."""

from __future__ import annotations

import ssl
from ipaddress import ip_address
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from umbel.backends import tls
from umbel.backends.url_options import parse_seconds
from umbel.errors import ConfigurationError
from umbel.urls import find_url_flaw, mask_url, unknown_options

_PORTS = {"amqp1": 5672, "amqp1s": 5671, "umbel": 5680, "umbel+tcp": 5680, "umbel+unix": 0}
_LINK_SCHEMES = ("umbel", "umbel+tcp", "umbel+unix")
_OPTIONS = ("connect_timeout", "vhost", "prefix", *tls.OPTIONS)


class AmqpAddress:
    """The address of a peer.

    ``amqp1://user:password@host:5672`` is a broker, ``amqp1s://`` a broker with TLS. Umbel's own
    processes are at ``umbel://host:5680?cafile=…&certfile=…&keyfile=…``, where both ends show a
    certificate. On the same machine they may also be at ``umbel+unix:///run/umbel.sock`` and
    ``umbel+tcp://127.0.0.1:5680``; these have no authentication and are refused for other machines.

    Raises:
        ConfigurationError: a part of the URL is wrong; the error names it.
    """

    def __init__(self, url: str) -> None:
        parts, self._options = _split(url)
        self.is_link = parts.scheme in _LINK_SCHEMES
        """Whether it is the address of an Umbel process, not of a broker."""
        self.tls = parts.scheme in ("amqp1s", "umbel")
        self.path = unquote(parts.path) if parts.scheme == "umbel+unix" else ""
        self.host, self.port = ("", 0) if self.path else (_host(parts), _port(parts))
        self.user = unquote(parts.username or "")
        self.password = unquote(parts.password or "")
        vhost = self._options.get("vhost")
        self.virtual_host = f"vhost:{vhost}" if vhost else self.host
        self.prefix = self._options.get("prefix")
        """What precedes a queue's name in an AMQP address; None: chosen by the broker's product."""
        self.server_name = self._options.get("server_name", self.host)
        timeout = self._options.get("connect_timeout", "5")
        self.connect_timeout = parse_seconds("connect_timeout", timeout, 0.1, 600)
        peer = "Umbel" if self.is_link else "the AMQP 1.0 broker"
        self.label = f"{peer} at {self.path or f'{self.host}:{self.port}'}"
        """How error messages name the peer. It contains no password."""
        if parts.scheme == "umbel+tcp" and not _is_local(self.host):
            raise ConfigurationError(
                f"umbel+tcp://{self.host}: umbel+tcp has no encryption or authentication, so it"
                " works only on this machine; write umbel:// with cafile, certfile and keyfile"
            )

    def ssl_context(self, listening: bool = False) -> ssl.SSLContext | None:
        """Return the TLS context of a client or a server; None without TLS.

        Raises:
            ConfigurationError: an option for TLS is missing or wrong.
        """
        if not self.tls:
            return None
        if not listening and self.is_link and "certfile" not in self._options:
            raise ConfigurationError("certfile: missing; both ends of umbel:// must have one")
        return tls.server(self._options) if listening else tls.client(self._options)


def _split(url: str) -> tuple[SplitResult, dict[str, str]]:
    if flaw := find_url_flaw(url):
        raise ConfigurationError(f"the URL {mask_url(url)!r} cannot be read: {flaw}")
    parts = urlsplit(url)
    if parts.scheme not in _PORTS:
        raise ConfigurationError(f"the URL must begin with one of {', '.join(_PORTS)}")
    if parts.scheme == "umbel+unix" and (parts.netloc or len(parts.path) < 2):
        raise ConfigurationError(
            "umbel+unix: write three slashes and a path, as in umbel+unix:///run/u"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS:
            raise ConfigurationError(
                f"{unknown_options([name], url)}: unknown in this URL; use {', '.join(_OPTIONS)}"
            )
        if name in tls.OPTIONS and parts.scheme not in ("amqp1s", "umbel"):
            raise ConfigurationError(f"{name}: needs TLS; begin the URL with amqp1s:// or umbel://")
    return parts, options


def _host(parts: SplitResult) -> str:
    if not parts.hostname:
        raise ConfigurationError(f"the URL names no host; write {parts.scheme}://host:port")
    return parts.hostname


def _port(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        raise ConfigurationError("port: give a number up to 65535 in the URL") from None
    return _PORTS[parts.scheme] if port is None else port


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
