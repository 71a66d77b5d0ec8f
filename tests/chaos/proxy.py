"""A line between workers and a server that can be slow, cut, or dead without a word."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Literal

Mood = Literal["fine", "slow", "dead"]


class Proxy:
    """Passes bytes on to a port of this machine. Runs in a thread of its own.

    *slow* holds back every chunk for a while. *dead* accepts and swallows, and never answers: a
    connection that was open then stays dead for ever, as behind a firewall that forgot it.
    """

    def __init__(self, target: int, seed: int) -> None:
        self.port = 0
        self._target = target
        self._pick = random.Random(seed)
        self._mood: Mood = "fine"
        self._lines: set[_Line] = set()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="proxy", daemon=True)
        self._thread.start()
        self._ready.wait(10)

    def be(self, mood: Mood) -> None:
        """Change how the line behaves, for open connections too."""
        self._call(self._be(mood))

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

    async def _be(self, mood: Mood) -> int:
        self._mood = mood
        if mood == "dead":
            for line in self._lines:
                line.dead = True
        return len(self._lines)

    async def _cut(self) -> int:
        lines = list(self._lines)
        for line in lines:
            line.reset()
        return len(lines)

    async def _end(self) -> int:
        await self._cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        return len(others)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = _Line(writer)
        line.dead = self._mood == "dead"
        self._lines.add(line)
        try:
            if line.dead:
                await _swallow(reader)
            else:
                await self._join(line, reader)
        except OSError:
            pass
        finally:
            self._lines.discard(line)
            line.close()

    async def _join(self, line: _Line, reader: asyncio.StreamReader) -> None:
        there, line.upstream = await asyncio.open_connection("127.0.0.1", self._target)
        ways = [
            asyncio.ensure_future(self._pass_on(line, reader, line.upstream)),
            asyncio.ensure_future(self._pass_on(line, there, line.writer)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        if line.dead:  # the server may have given up; the other side is never told
            await asyncio.wait(ways[:1])
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)

    async def _pass_on(
        self, line: _Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if self._mood == "slow":
                    await asyncio.sleep(self._pick.uniform(0.02, 0.4))
                if not line.dead:
                    writer.write(data)
                    await writer.drain()


class _Line:
    """One connection and its other half."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.upstream: asyncio.StreamWriter | None = None
        self.dead = False

    def reset(self) -> None:
        """Both ends hear of it at once, with a reset."""
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
