"""A program on a terminal of 80 columns and 24 lines, and what its screen shows.

It understands exactly the sequences that ``umbel top`` may write, so any other control character
that reaches the terminal fails the test.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

_PATIENCE = 60.0
_OWN = re.compile(
    r"\x1b\[(?P<row>\d+);1H|(?P<erase>\x1b\[K)|(?P<clear>\x1b\[2J)|(?P<home>\x1b\[H)"
    r"|(?P<mode>\x1b\[\?(?:1049|25)[hl])|(?P<style>\x1b\[[\d;]*m)|(?P<text>[^\x00-\x1f\x7f-\x9f]+)"
)
_LEAVE = "\x1b[?1049l"


class TerminalScreen:
    """A running program, its keys and its screen."""

    def __init__(
        self, words: tuple[str, ...], folder: Path, columns: int, lines: int, env: dict[str, str]
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        removed = ("UMBEL", "NO_COLOR", "COLUMNS", "LINES")
        kept = {n: v for n, v in os.environ.items() if not n.startswith(removed)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "umbel", *words],
            cwd=folder,
            env=kept | {"TERM": "xterm-256color"} | env,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        self._slave = slave
        self._data = b""
        self.columns = columns
        self.rows = [""] * lines
        self.styles = ""
        """All colours and styles that it wrote."""
        self.written = ""

    def __enter__(self) -> TerminalScreen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(_PATIENCE)
        for end in (self._master, self._slave):
            os.close(end)

    @property
    def text(self) -> str:
        """The screen, one line for each row."""
        return "\n".join(self.rows)

    def press(self, *keys: str) -> None:
        """Press keys."""
        for key in keys:
            os.write(self._master, key.encode())

    def wait_for(self, *texts: str) -> None:
        """Wait until the screen shows all these texts."""
        until = time.monotonic() + _PATIENCE
        while not all(text in self.text for text in texts):
            assert time.monotonic() < until, f"{texts} is not on the screen:\n{self.text}"
            assert self.process.poll() is None, f"it has ended:\n{self.text}\n{self._data!r}"
            self._read(1.0)

    def wait_until_gone(self, text: str) -> None:
        """Wait until the screen does not show a text."""
        until = time.monotonic() + _PATIENCE
        while text in self.text:
            assert time.monotonic() < until, f"{text!r} is still on the screen:\n{self.text}"
            self._read(1.0)

    def resize(self, columns: int, lines: int) -> None:
        """Give the terminal another size, which tells the program."""
        self.columns, self.rows = columns, [""] * lines
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def quit(self) -> int:
        """Press q and return the exit code; the terminal is as it was before."""
        before = termios.tcgetattr(self._slave)
        assert not before[3] & termios.ICANON
        self.press("q")
        until = time.monotonic() + _PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < until, "it does not end"
            self._read(0.1)
        while self._read(0.0):
            pass
        assert _LEAVE in self.written
        assert termios.tcgetattr(self._slave)[3] & termios.ICANON
        return self.process.returncode

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], seconds)
        if not ready:
            return False
        self._data += os.read(self._master, 65536)
        text = self._data.decode(errors="ignore")
        # A sequence or a character may have arrived in part.
        whole = text if self._data.decode(errors="replace") == text else ""
        if whole and not re.search(r"\x1b(\[[\d;?]*)?\Z", whole):
            self._data = b""
            self._show(whole)
        return True

    def _show(self, text: str) -> None:
        self.written += text
        row, place = 0, 0
        while place < len(text):
            found = _OWN.match(text, place)
            assert found is not None, f"not harmless: {text[place : place + 40]!r}"
            place = found.end()
            if found["row"]:
                row = int(found["row"]) - 1
                if row < len(self.rows):
                    self.rows[row] = ""
            elif found["clear"]:
                self.rows = [""] * len(self.rows)
            elif found["style"]:
                self.styles += found["style"]
            elif found["text"] and row < len(self.rows):
                self.rows[row] += found["text"]


@contextmanager
def umbel_top(
    url: str,
    namespace: str,
    folder: Path,
    *options: str,
    columns: int = 80,
    lines: int = 24,
    **env: str,
) -> Iterator[TerminalScreen]:
    """Run ``umbel top`` on a terminal."""
    place = {"UMBEL_URL": url, "UMBEL_NAMESPACE": namespace}
    words = ("top", "--interval", "0.2", *options)
    with TerminalScreen(words, folder, columns, lines, place | env) as screen:
        yield screen
