"""A line waits in turns: as long as it may, and no longer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from umbel.backends.redis import raw_connection as module
from umbel.backends.redis.raw_connection import Line
from umbel.backends.redis.scripts import Script

SCRIPT = Script(b"return 1", "digest")


@pytest.fixture
def ends() -> Iterator[tuple[Line, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Line(cast(Any, SimpleNamespace(_sock=ours, disconnect=ours.close))), theirs


def test_an_answer_that_takes_many_turns_is_heard(
    ends: tuple[Line, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TURN", 0.01)
    line, server = ends
    answer = line.ask(SCRIPT, "root", [], time.monotonic() + 60)
    threading.Timer(0.2, server.sendall, [b":7\r\n"]).start()
    assert answer() == 7


def test_who_has_little_time_after_one_who_had_much_does_not_wait_for_ever(
    ends: tuple[Line, socket.socket],
) -> None:
    line, server = ends
    server.sendall(b":7\r\n")
    assert line.ask(SCRIPT, "root", [], time.monotonic() + 3600)() == 7
    answer = line.ask(SCRIPT, "root", [], time.monotonic() + 0.05)
    with pytest.raises(TimeoutError):
        answer()
