"""What a connection sends to log in. With ``tls://``, never without encryption."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from nats.errors import SecureConnWantedError


class Login:
    """The login of one connection.

    nats-py encrypts only if the server requires it. The server's answer could be forged, so secrets
    are passed as functions: nats-py calls them when encryption would be in use, and they refuse if
    it is not.
    """

    def __init__(
        self, arguments: Mapping[str, Any], context: ssl.SSLContext | None, *, requires_tls: bool
    ) -> None:
        self.ssl_context = context
        self._requires_tls = requires_tls
        self.arguments: dict[str, Any] = {
            name: self._guard(name, value) for name, value in arguments.items()
        }
        """The arguments of nats-py's ``connect``."""

    def check_encrypted(self) -> None:
        """Raise SecureConnWantedError if the connection is not encrypted and has to be."""
        if self._requires_tls and not (
            self.ssl_context and self.ssl_context.session_stats()["connect_good"]
        ):
            raise SecureConnWantedError

    def _guard(self, name: str, value: str) -> str | Callable[[], str]:
        if not self._requires_tls or name == "user_credentials":  # its key only signs
            return value
        return partial(self._reveal, value)

    def _reveal(self, value: str) -> str:
        self.check_encrypted()
        return value
