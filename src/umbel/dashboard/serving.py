"""Serves the dashboard on an address: in the main thread, or in a thread beside a worker."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from umbel.app import Umbel
from umbel.dashboard.options import DashboardOptions
from umbel.dashboard.server import dashboard
from umbel.errors import ConfigurationError

_STOP_SECONDS = 3.0


def listen(options: DashboardOptions) -> socket.socket:
    """Return a socket that listens on the address. Raises ConfigurationError."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        return socket.create_server((options.host, options.port), family=family)
    except OSError as error:
        raise ConfigurationError(
            f"port={options.port}: cannot listen on {options.host}: {error.strerror or error};"
            " give another one with --port"
        ) from None


def url_of(listening: socket.socket, options: DashboardOptions) -> str:
    """Return the address that a browser opens."""
    host, port = listening.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}{options.prefix}/"


def serve(app: Umbel, options: DashboardOptions, listening: socket.socket, address: str) -> None:
    """Serve the dashboard until a signal ends the process."""
    _server(app, options, address).run(sockets=[listening])


@contextmanager
def serving(
    app: Umbel, options: DashboardOptions, listening: socket.socket, address: str
) -> Iterator[None]:
    """Serve the dashboard in a thread, with an event loop of its own, until the block ends."""
    server = _server(app, options, address)
    thread = threading.Thread(
        target=server.run, args=([listening],), name="umbel dashboard", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(_STOP_SECONDS)


def _server(app: Umbel, options: DashboardOptions, address: str) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            dashboard(app, options, address=address),
            root_path=options.prefix,
            log_config=None,
            log_level="warning",  # its start and stop are no news beside the lines of jobs
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
        )
    )
