"""Where a peer is that speaks AMQP 1.0, and how to reach it."""

from __future__ import annotations

import ssl
from ipaddress import ip_address
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from umbel.backends import tls
from umbel.errors import ConfigurationError
from umbel.urls import flaw_of, masked_url, unknown_options

_PORTS = {"amqp1": 5672, "amqp1s": 5671, "umbel": 5680, "umbel+tcp": 5680, "umbel+unix": 0}
_OWN = ("umbel", "umbel+tcp", "umbel+unix")
_KNOWN = ("connect_timeout", "vhost", "prefix", *tls.OPTIONS)


class Home:
    """The address of a peer.

    ``amqp1://user:password@host:5672`` is a broker, ``amqp1s://`` one with TLS. Our own processes
    are at ``umbel://host:5680?cafile=…&certfile=…&keyfile=…``, where both ends prove who they are;
    on this machine also at ``umbel+unix:///run/umbel.sock`` and ``umbel+tcp://127.0.0.1:5680``,
    which prove nothing and so are refused anywhere else.

    Raises:
        ConfigurationError: the URL is wrong; it names the part.
    """

    def __init__(self, url: str) -> None:
        parts, self._options = _split(url)
        self.own = parts.scheme in _OWN
        """Whether one of our own processes is there."""
        self.tls = parts.scheme in ("amqp1s", "umbel")
        self.path = unquote(parts.path) if parts.scheme == "umbel+unix" else ""
        self.host, self.port = ("", 0) if self.path else (_host(parts), _port(parts))
        self.user = unquote(parts.username or "")
        self.password = unquote(parts.password or "")
        vhost = self._options.get("vhost")
        self.virtual = f"vhost:{vhost}" if vhost else self.host
        self.prefix = self._options.get("prefix")
        """What goes before a queue's name in an address; None to go by what the broker is."""
        self.server_name = self._options.get("server_name", self.host)
        self.connect_timeout = _seconds(self._options.get("connect_timeout", "5"))
        what = "Umbel" if self.own else "the AMQP 1.0 broker"
        self.address = f"{what} at {self.path or f'{self.host}:{self.port}'}"
        if parts.scheme == "umbel+tcp" and not _is_here(self.host):
            raise ConfigurationError(
                f"umbel+tcp://{self.host}: nothing is encrypted or proven there, so it is for this"
                " machine only; write umbel:// with cafile, certfile and keyfile"
            )

    def context(self, listening: bool = False) -> ssl.SSLContext | None:
        """What TLS needs; None without it. Raises ConfigurationError."""
        if not self.tls:
            return None
        if not listening and self.own and "certfile" not in self._options:
            raise ConfigurationError("certfile: is missing; both ends of umbel:// show one")
        return tls.server(self._options) if listening else tls.client(self._options)


def _split(url: str) -> tuple[SplitResult, dict[str, str]]:
    if flaw := flaw_of(url):
        raise ConfigurationError(f"the URL {masked_url(url)!r} cannot be read: {flaw}")
    parts = urlsplit(url)
    if parts.scheme not in _PORTS:
        raise ConfigurationError(f"the URL begins with one of {', '.join(_PORTS)}")
    if parts.scheme == "umbel+unix" and (parts.netloc or len(parts.path) < 2):
        raise ConfigurationError("umbel+unix: three slashes and a path, as in umbel+unix:///run/u")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in _KNOWN:
            raise ConfigurationError(
                f"{unknown_options([name], url)}: unknown in this URL; use {', '.join(_KNOWN)}"
            )
        if name in tls.OPTIONS and parts.scheme not in ("amqp1s", "umbel"):
            raise ConfigurationError(
                f"{name}: is for TLS; begin the URL with amqp1s:// or umbel://"
            )
    return parts, options


def _host(parts: SplitResult) -> str:
    if not parts.hostname:
        raise ConfigurationError(f"the URL names no host: write {parts.scheme}://host:port")
    return parts.hostname


def _port(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        raise ConfigurationError("port: give a number up to 65535 in the URL") from None
    return _PORTS[parts.scheme] if port is None else port


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 600:
        raise ConfigurationError(f"connect_timeout={value!r}: give seconds from 0.1 to 600")
    return seconds


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
