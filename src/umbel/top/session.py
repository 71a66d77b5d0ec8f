"""Runs the screen: reads the store every second, listens to keys, and writes what has changed."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

import anyio
from rich.console import Console
from rich.text import Text

from umbel.app import Umbel
from umbel.errors import UmbelError, Unavailable
from umbel.operations import Operations
from umbel.top.actions import Asked, Plan, perform, prepare
from umbel.top.drawing import Frame, draw
from umbel.top.keyboard import Keyboard
from umbel.top.reading import Snapshot, read_snapshot
from umbel.top.screen import Question, Screen

_READ_SECONDS = 5.0
_COST_FACTOR = 20
_MAX_SECONDS = 5.0
"""The time between two reads is this many times the time that one takes, up to a maximum."""
_MIN_COST_FACTOR = 4
"""Also of a read that takes long."""
_ESCAPE_SECONDS = 0.05
"""An escape that nothing follows for so long is the key Esc."""
_ACTION_SECONDS = 60.0
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J", "\x1b[?25h\x1b[?1049l"


async def run_top(
    app: Umbel, screen: Screen, *, title: str, address: str, user: str, seconds: float, color: bool
) -> None:
    """Show the screen until the user quits. Standard input and output are a terminal."""
    operations = app.operations()
    operations.reuse_reads()
    console = Console(file=sys.stdout, force_terminal=True, no_color=not color, highlight=False)
    session = _Session(app, operations, screen, console, title, address, user, seconds)
    try:
        with _raw_terminal(sys.stdin, sys.stdout):
            await session.run()
    finally:
        with anyio.move_on_after(1, shield=True), suppress(UmbelError):
            await operations.close()


@contextmanager
def _raw_terminal(source: TextIO, target: TextIO) -> Iterator[None]:
    """Read single keys, and write to a second screen that disappears at the end."""
    before = termios.tcgetattr(source)
    try:
        tty.setraw(source, termios.TCSANOW)
        target.write(_ENTER)
        target.flush()
        yield
    finally:
        with suppress(OSError, ValueError, termios.error):  # the terminal is gone
            target.write(_LEAVE)
            target.flush()
            termios.tcsetattr(source, termios.TCSADRAIN, before)


class _Session:
    """One run of the screen."""

    def __init__(
        self,
        app: Umbel,
        operations: Operations,
        screen: Screen,
        console: Console,
        title: str,
        address: str,
        user: str,
        seconds: float,
    ) -> None:
        self._app = app
        self._operations = operations
        self._screen = screen
        self._console = console
        self._title = title
        self._address = address
        self._user = user
        self._seconds = seconds
        self._keyboard = Keyboard()
        self._snapshot: Snapshot | None = None
        self._trouble = ""
        self._since: float | None = None
        self._written: list[str] = []
        self._quit = asyncio.Event()
        self._changed = asyncio.Event()
        self._must_read = asyncio.Event()
        self._acting: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Run until a key or a signal ends it."""
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(name, self._quit.set)
        loop.add_signal_handler(signal.SIGWINCH, self._redraw)
        loop.add_reader(sys.stdin.fileno(), self._listen)
        tasks = [
            asyncio.create_task(work())
            for work in (self._quit.wait, self._keep_reading, self._keep_drawing)
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            loop.remove_reader(sys.stdin.fileno())
            for task in (*tasks, *self._acting):
                task.cancel()
            await asyncio.gather(*tasks, *self._acting, return_exceptions=True)

    # --- the store ---------------------------------------------------------------------------

    async def _keep_reading(self) -> None:
        clock = self._app.clock
        while True:
            started = clock.monotonic()
            self._must_read.clear()
            await self._read()
            self._changed.set()
            cost = clock.monotonic() - started
            with suppress(TimeoutError):
                pause = max(_MIN_COST_FACTOR * cost, min(_COST_FACTOR * cost, _MAX_SECONDS))
                async with asyncio.timeout(max(self._seconds, pause)):
                    await self._must_read.wait()

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(_READ_SECONDS):
                self._snapshot = await read_snapshot(
                    self._operations, self._screen.wanted, self._address
                )
        except Unavailable:
            self._fail("The store is unreachable")
        except TimeoutError:
            self._fail(f"The store has not answered within {_READ_SECONDS:g} s")
        except UmbelError as error:
            self._fail(str(error))
        else:
            self._trouble, self._since = "", None

    def _fail(self, text: str) -> None:
        self._trouble = text
        self._since = self._since or self._app.clock.now()

    # --- keys --------------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            data = os.read(sys.stdin.fileno(), 4096)
        except OSError:
            data = b""
        if not data:  # the terminal is gone
            self._quit.set()
            return
        for key in self._keyboard.feed(data):
            self._press(key)
        if self._keyboard.is_waiting:
            asyncio.get_running_loop().call_later(_ESCAPE_SECONDS, self._flush)

    def _flush(self) -> None:
        for key in self._keyboard.flush():
            self._press(key)

    def _press(self, key: str) -> None:
        if key == "redraw":
            self._redraw()
            return
        before = self._screen.wanted
        wish = self._screen.press(key, self._snapshot)
        if wish == "quit":
            self._quit.set()
        elif wish is not None:
            task = asyncio.create_task(self._act(wish, self._screen.pressed))
            self._acting.add(task)
            task.add_done_callback(self._acting.discard)
        if self._screen.wanted != before:
            self._must_read.set()
        self._changed.set()

    async def _act(self, wish: Asked | Plan, pressed: int) -> None:
        screen = self._screen
        try:
            async with asyncio.timeout(_ACTION_SECONDS):
                if isinstance(wish, Asked):
                    screen.ask(Question(*await prepare(self._operations, wish)), pressed)
                else:
                    screen.say(await perform(self._operations, wish, self._user))
                    self._operations.reread()
                    self._must_read.set()
        except TimeoutError:
            screen.say("The store does not answer. Look before you try again.", is_bad=True)
        except UmbelError as error:
            screen.say(str(error), is_bad=True)
        self._changed.set()

    # --- the terminal ------------------------------------------------------------------------

    def _redraw(self) -> None:
        self._written = []
        self._changed.set()

    async def _keep_drawing(self) -> None:
        while True:
            self._draw()
            self._changed.clear()
            await self._changed.wait()

    def _draw(self) -> None:
        columns, lines = shutil.get_terminal_size()
        frame = Frame(columns, lines, self._title, self._seconds, self._trouble, self._since)
        drawn = draw(self._screen, self._snapshot, frame, self._app.codec)
        texts = [self._render(line) for line in drawn]
        parts = [] if self._written else ["\x1b[2J"]
        old = self._written if len(self._written) == len(texts) else [""] * len(texts)
        parts += [
            f"\x1b[{at};1H{new}\x1b[K"
            for at, (new, was) in enumerate(zip(texts, old, strict=True), 1)
            if new != was
        ]
        self._written = texts
        try:
            sys.stdout.write("".join(parts))
            sys.stdout.flush()
        except OSError:  # the terminal is gone
            self._quit.set()

    def _render(self, line: Text) -> str:
        with self._console.capture() as captured:
            self._console.print(line, end="", soft_wrap=True, crop=False)
        return captured.get().rstrip(" ")
