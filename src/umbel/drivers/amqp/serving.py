"""Listening: whoever connects gets a wire and somebody who owns it."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Callable

from umbel.drivers.amqp.connections import Wire
from umbel.drivers.amqp.engine import Owner
from umbel.drivers.amqp.home import Home
from umbel.errors import Unavailable

Greet = Callable[[Callable[[], Wire]], Owner]
"""Makes the owner of a new connection, who may ask for its wire later."""


async def listen(home: Home, greet: Greet) -> asyncio.Server:
    """Serve connections at this address.

    Raises:
        Unavailable: the address cannot be had.
    """
    loop = asyncio.get_running_loop()

    def accept() -> Wire:
        made: list[Wire] = []
        wire = Wire(greet(lambda: made[0]), server=True)
        made.append(wire)
        return wire

    try:
        if home.path:
            _clear(home.path)
            server = await loop.create_unix_server(accept, home.path)
            os.chmod(home.path, 0o660)
            return server
        return await loop.create_server(accept, home.host, home.port, ssl=home.context(True))
    except OSError as error:
        raise Unavailable(f"cannot listen at {home.address}: {error}") from None


def _clear(path: str) -> None:
    """Remove a socket that nobody serves any more. Raises Unavailable when somebody does."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise Unavailable(f"cannot listen at {path}: there is a file that is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            os.unlink(path)
            return
    raise Unavailable(f"cannot listen at {path}: another process does")
