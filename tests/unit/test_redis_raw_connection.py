"""A raw connection waits until its deadline, in several system calls if necessary."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from umbel.backends.redis import raw_connection as module
from umbel.backends.redis.raw_connection import RawConnection
from umbel.backends.redis.scripts import Script

SCRIPT = Script(b"return 1", "digest")


@pytest.fixture
def ends() -> Iterator[tuple[RawConnection, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield RawConnection(cast(Any, SimpleNamespace(_sock=ours, disconnect=ours.close))), theirs


def test_an_answer_that_takes_longer_than_one_socket_timeout_is_read(
    ends: tuple[RawConnection, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_SOCKET_TIMEOUT", 0.01)
    connection, server = ends
    answer = connection.start(SCRIPT, "root", [], time.monotonic() + 60)
    threading.Timer(0.2, server.sendall, [b":7\r\n"]).start()
    assert answer() == 7


def test_a_short_deadline_after_a_long_one_is_respected(
    ends: tuple[RawConnection, socket.socket],
) -> None:
    connection, server = ends
    server.sendall(b":7\r\n")
    assert connection.start(SCRIPT, "root", [], time.monotonic() + 3600)() == 7
    answer = connection.start(SCRIPT, "root", [], time.monotonic() + 0.05)
    with pytest.raises(TimeoutError):
        answer()
