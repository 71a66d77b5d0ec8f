"""Connecting in a thread of its own, or without one where none can be started."""

from __future__ import annotations

import threading
import time

import pytest

from umbel.backends.connecting import connect_before


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_connection_is_made_in_the_callers_thread_when_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)
    threads: list[str] = []

    def connect() -> str:
        threads.append(threading.current_thread().name)
        return "connection"

    assert connect_before(time.monotonic() + 30, connect, threads.append) == "connection"
    assert threads == [threading.current_thread().name]


def test_what_connecting_raises_is_raised_without_a_thread_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)

    def connect() -> str:
        raise ConnectionRefusedError("nobody listens")

    with pytest.raises(ConnectionRefusedError, match="nobody listens"):
        connect_before(time.monotonic() + 30, connect, lambda _: None)
