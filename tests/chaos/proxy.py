"""A TCP proxy between workers and a server that can delay, reset or silently drop connections."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Literal

ConnectionState = Literal["fine", "slow", "dead"]


class Proxy:
    """Forwards bytes to a port of this machine. Runs in its own thread.

    *slow* delays every chunk. *dead* accepts connections, discards all bytes and never answers. A
    connection that was open then stays dead, as behind a firewall that dropped its state.
    """

    def __init__(self, target: int, seed: int) -> None:
        self.port = 0
        self._target = target
        self._pick = random.Random(seed)
        self._state: ConnectionState = "fine"
        self._connections: set[_Connection] = set()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="proxy", daemon=True)
        self._thread.start()
        self._ready.wait(10)

    def set_state(self, state: ConnectionState) -> None:
        """Set the state of all connections, including open ones."""
        self._call(self._set_state(state))

    def cut(self) -> int:
        """Reset every open connection. Returns how many."""
        return self._call(self._cut())

    def close(self) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _call(self, work: Coroutine[Any, Any, int]) -> int:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        starting = asyncio.start_server(self._accept, "127.0.0.1", 0)
        server = self._loop.run_until_complete(starting)
        self.port = int(server.sockets[0].getsockname()[1])
        self._ready.set()
        self._loop.run_forever()

    async def _set_state(self, state: ConnectionState) -> int:
        self._state = state
        if state == "dead":
            for connection in self._connections:
                connection.dead = True
        return len(self._connections)

    async def _cut(self) -> int:
        connections = list(self._connections)
        for connection in connections:
            connection.reset()
        return len(connections)

    async def _end(self) -> int:
        await self._cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        return len(others)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(writer)
        connection.dead = self._state == "dead"
        self._connections.add(connection)
        try:
            if connection.dead:
                await _swallow(reader)
            else:
                await self._join(connection, reader)
        except OSError:
            pass
        finally:
            self._connections.discard(connection)
            connection.close()

    async def _join(self, connection: _Connection, reader: asyncio.StreamReader) -> None:
        there, connection.upstream = await asyncio.open_connection("127.0.0.1", self._target)
        directions = [
            asyncio.ensure_future(self._pass_on(connection, reader, connection.upstream)),
            asyncio.ensure_future(self._pass_on(connection, there, connection.writer)),
        ]
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        if connection.dead:  # the server may have closed it; the client does not notice
            await asyncio.wait(directions[:1])
        for direction in directions:
            direction.cancel()
        await asyncio.gather(*directions, return_exceptions=True)

    async def _pass_on(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if self._state == "slow":
                    await asyncio.sleep(self._pick.uniform(0.02, 0.4))
                if not connection.dead:
                    writer.write(data)
                    await writer.drain()


class _Connection:
    """One client connection and its connection to the server."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.upstream: asyncio.StreamWriter | None = None
        self.dead = False

    def reset(self) -> None:
        """Reset both connections immediately."""
        for half in (self.writer, self.upstream):
            if half is not None:
                sock: socket.socket = half.get_extra_info("socket")
                with suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                half.transport.abort()

    def close(self) -> None:
        for half in (self.writer, self.upstream):
            if half is not None:
                half.close()


async def _swallow(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass
