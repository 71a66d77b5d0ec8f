"""The address of a RabbitMQ server: host, user, virtual host and options."""

from __future__ import annotations

from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import pika  # type: ignore[import-untyped]

from umbel.backends import tls
from umbel.backends.url_options import parse_seconds
from umbel.errors import ConfigurationError
from umbel.urls import unknown_options

_PORTS = {"amqp": 5672, "amqps": 5671}
_OPTIONS = ("heartbeat", "connect_timeout", *tls.OPTIONS)
_EXAMPLE = "amqp://user:password@host:5672/vhost"


class RabbitAddress:
    """The address of a virtual host.

    ``amqp://user:password@host:5672/vhost?heartbeat=30``, or ``amqps://`` for TLS. The options are
    ``heartbeat`` (seconds until a silent server counts as lost, 0 for never), ``connect_timeout``
    (seconds), and with ``amqps`` also ``cafile``, ``certfile``, ``keyfile``, ``verify`` (true or
    false) and ``server_name``.

    Raises:
        ConfigurationError: the URL is wrong; the error names the part.
    """

    def __init__(self, url: str) -> None:
        parts, options = _split(url)
        self.host, self.port = _host(parts), _port(parts)
        self.vhost = _vhost(parts.path)
        self.label = f"RabbitMQ {self.vhost} at {self.host}:{self.port}"
        timeout = options.get("connect_timeout", "5")
        self.connect_timeout = parse_seconds("connect_timeout", timeout, 0.1, 600)
        self._heartbeat = _heartbeat(options.get("heartbeat", "30"))
        self._user = unquote(parts.username) if parts.username else "guest"
        self._password = unquote(parts.password) if parts.password else "guest"
        self._tls = _tls(options, self.host) if parts.scheme == "amqps" else None

    def parameters(self, purpose: str) -> pika.ConnectionParameters:
        """Return pika's parameters. The server shows the purpose in its list of connections."""
        return pika.ConnectionParameters(
            host=self.host,
            port=self.port,
            virtual_host=self.vhost,
            credentials=pika.PlainCredentials(self._user, self._password),
            heartbeat=self._heartbeat,
            socket_timeout=self.connect_timeout,
            stack_timeout=self.connect_timeout,
            connection_attempts=1,
            ssl_options=self._tls,
            client_properties={"connection_name": f"umbel {purpose}"},
        )


def _split(url: str) -> tuple[SplitResult, dict[str, str]]:
    try:
        parts = urlsplit(url)
    except ValueError:  # its text quotes a part of the URL, perhaps the password
        raise ConfigurationError(f"the RabbitMQ URL cannot be read: write {_EXAMPLE}") from None
    if parts.scheme not in _PORTS:
        raise ConfigurationError(f"the RabbitMQ URL begins with amqp:// or amqps://: {_EXAMPLE}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS:
            raise ConfigurationError(
                f"{unknown_options([name], url)}: unknown in a RabbitMQ URL;"
                f" use {', '.join(_OPTIONS)}"
            )
        if name in tls.OPTIONS and parts.scheme != "amqps":
            raise ConfigurationError(f"{name}: is for TLS; begin the URL with amqps://")
    return parts, options


def _host(parts: SplitResult) -> str:
    if not parts.hostname:
        raise ConfigurationError(f"the RabbitMQ URL names no host: write {_EXAMPLE}")
    return parts.hostname


def _port(parts: SplitResult) -> int:
    try:
        port = _PORTS[parts.scheme] if parts.port is None else parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ConfigurationError("port: give a number from 1 to 65535 in the RabbitMQ URL")
    return port


def _vhost(path: str) -> str:
    name = path.removeprefix("/")
    if "/" in name:
        raise ConfigurationError(f"vhost={name!r}: write %2F for each slash in its name")
    return unquote(name) or "/"


def _heartbeat(value: str) -> int:
    if not (value.isascii() and value.isdigit()) or int(value) > 65_535:
        raise ConfigurationError(f"heartbeat={value!r}: give whole seconds, or 0 for none")
    return int(value)


def _tls(options: dict[str, str], host: str) -> pika.SSLOptions:
    return pika.SSLOptions(tls.client(options), options.get("server_name", host))
