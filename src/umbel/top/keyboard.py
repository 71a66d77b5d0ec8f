"""Turns the bytes of a keyboard into names of keys."""

from __future__ import annotations

import codecs

_SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1bOH": "home",
    b"\x1bOF": "end",
    b"\x1b[1~": "home",
    b"\x1b[4~": "end",
    b"\x1b[Z": "back tab",
}
_SINGLE = {
    0x09: "tab",
    0x0D: "enter",
    0x0A: "enter",
    0x7F: "backspace",
    0x08: "backspace",
    0x03: "q",
    0x0C: "redraw",
}
_MAX_SEQUENCE = 16


class Keyboard:
    """Collects bytes. A sequence may arrive in several parts, as over a slow line."""

    def __init__(self) -> None:
        self._left = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    @property
    def is_waiting(self) -> bool:
        """Whether an escape has arrived that may be a key or begin a sequence."""
        return bool(self._left)

    def feed(self, data: bytes) -> list[str]:
        """Return the keys that have been pressed: a character, or a name such as ``up``."""
        data, self._left = self._left + data, b""
        keys: list[str] = []
        while data:
            if data[0] == 0x1B:
                length = _length(data)
                if length is None:
                    self._left = data
                    break
                if (key := _SEQUENCES.get(data[:length])) is not None:
                    keys.append(key)
                elif length == 1:
                    keys.append("escape")
                data = data[length:]
                continue
            if (named := _SINGLE.get(data[0])) is not None:
                keys.append(named)
            else:
                keys += [c for c in self._decoder.decode(data[:1]) if c.isprintable()]
            data = data[1:]
        return keys

    def flush(self) -> list[str]:
        """Return the escape key, if an escape has arrived and nothing followed it."""
        waiting, self._left = self._left, b""
        return ["escape"] if waiting == b"\x1b" else []


def _length(data: bytes) -> int | None:
    """Return the length of the sequence at the beginning; None if more bytes must follow."""
    if len(data) == 1:
        return None
    if data[1:2] == b"O":
        return 3 if len(data) >= 3 else None
    if data[1:2] != b"[":
        return 1
    for place in range(2, min(len(data), _MAX_SEQUENCE)):
        if 0x40 <= data[place] <= 0x7E:
            return place + 1
    return None if len(data) < _MAX_SEQUENCE else _MAX_SEQUENCE
