"""The dashboard as a process of its own, or in a thread beside the worker of ``umbel dev``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from umbel.app import Umbel
from umbel.errors import ConfigurationError

if TYPE_CHECKING:
    import socket

    from umbel.dashboard import DashboardOptions

_PORTS = range(8080, 8090)
"""The ports that ``umbel dev`` tries."""


class OpenDashboard:
    """A dashboard whose address is reserved, so that its URL is known before it serves."""

    def __init__(
        self, app: Umbel, address: str, options: DashboardOptions, listening: socket.socket
    ) -> None:
        from umbel.dashboard import serving

        self._parts = (app, options, listening, address)
        self.url = serving.url_of(listening, options)

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM."""
        from umbel.dashboard import serving

        with suppress(KeyboardInterrupt):  # the usual way to stop it
            serving.serve(*self._parts)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Serve in a thread until the block ends."""
        from umbel.dashboard import serving

        with serving.serving(*self._parts):
            yield


def open_dashboard(app: Umbel, address: str | None, **options: Any) -> OpenDashboard:
    """Reserve the address of a dashboard. Raises ConfigurationError if it cannot be used."""
    try:
        from umbel.dashboard import DashboardOptions, serving
    except ImportError as error:
        raise ConfigurationError(
            f"the dashboard needs more packages: pip install 'umbel[dashboard]' ({error})"
        ) from None
    chosen = DashboardOptions(**options)
    return OpenDashboard(app, address or "MODULE:APP", chosen, serving.listen(chosen))


def open_dev_dashboard(app: Umbel, address: str) -> OpenDashboard | None:
    """Reserve the first free port for a dashboard; None if it is not installed or none is free."""
    for port in _PORTS:
        try:
            return open_dashboard(app, address, port=port)
        except ConfigurationError:
            continue
    return None
