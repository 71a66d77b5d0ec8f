"""Waiting awake for a server that is near, and asleep for one that is not."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from umbel.backends.spin_wait import SpinWait


class Looks:
    """The system's own poll; how often it was asked."""

    many = 0

    def __init__(self) -> None:
        self._poll = _poll()
        self.register = self._poll.register

    def poll(self, timeout: int) -> Any:
        assert timeout == 0, "whoever looks out does not sleep"
        Looks.many += 1
        return self._poll.poll(timeout)


_poll = select.poll


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, socket.socket]]:
    monkeypatch.setattr(select, "poll", Looks)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def looks(lookout: SpinWait) -> int:
    """How often it looks in one wait."""
    Looks.many = 0
    lookout.wait()
    return Looks.many


def test_what_is_there_is_seen(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    lookout = SpinWait(ours)
    assert not lookout.is_readable()
    theirs.send(b"x")
    assert lookout.is_readable()
    assert looks(lookout) == 1


def test_what_comes_soon_is_waited_for(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("umbel.backends.spin_wait._SPIN_SECONDS", 60.0)
    ours, theirs = ends
    lookout = SpinWait(ours)
    timer = threading.Timer(0.02, theirs.send, [b"x"])
    timer.start()
    assert looks(lookout) > 1
    assert lookout.is_readable()
    timer.join()


def test_a_server_that_is_far_is_looked_out_for_ever_more_seldom(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    lookout = SpinWait(ours)
    for naps in (2, 4, 8, 16, 32, 64, 64, 64):
        assert looks(lookout) > 0
        assert [looks(lookout) for _ in range(naps)] == [0] * naps
    theirs.send(b"x")
    assert [looks(lookout) for _ in range(20)] == [1] * 20  # it has come nearer
    ours.recv(1)
    assert looks(lookout) > 0
    assert [looks(lookout) for _ in range(2)] == [0, 0]


def test_who_closes_is_seen(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    theirs.close()
    assert SpinWait(ours).is_readable()
