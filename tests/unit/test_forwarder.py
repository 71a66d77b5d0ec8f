"""Between callers and a broker: a message that fails in an unexpected way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pytest

from umbel.backends import Published
from umbel.clock import SystemClock
from umbel.errors import Unavailable
from umbel.messages import JSON, Body, Envelope
from umbel.publisher import Forwarder
from umbel.publisher.memory_backlog import MemoryBacklog
from umbel.resilience import Backoff, Breaker
from umbel.telemetry import Telemetry, events

HANG = 30.0


class Server:
    """Publishes, unless it is away; fails on what is called bad."""

    def __init__(self) -> None:
        self.away = False
        self.published: list[str] = []

    def send(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        if self.away:
            raise Unavailable("away")
        if any(one.id.startswith("bad") for one in envelopes):
            raise ValueError("an odd message")
        self.published += [one.id for one in envelopes]
        return [Published(one.id) for one in envelopes]


class Told:
    """What a forwarder tells."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []
        self._changed = threading.Condition()

    def __call__(self, event: events.Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait_for(self, kind: type[events.Event]) -> events.Event:
        with self._changed:
            found = self._changed.wait_for(lambda: self._of(kind), HANG)
        assert found is not None, f"{kind.__name__} was not told"
        return found

    def _of(self, kind: type[events.Event]) -> events.Event | None:
        return next((one for one in self.events if isinstance(one, kind)), None)


def message(job: str) -> Envelope:
    return Envelope(id=job, subject="t", body=Body(JSON, b"{}"))


def forwarder(server: Server, told: Told) -> Forwarder:
    clock = SystemClock()
    kept = MemoryBacklog(clock, limit=100)
    breaker = Breaker(failures=1, pause=Backoff(first=0.01, cap=0.01))
    return Forwarder(
        server.send, kept, clock, deadline=0.1, telemetry=Telemetry(told), breaker=breaker
    )


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def test_a_stored_message_that_cannot_be_published_does_not_delay_the_others() -> None:
    server, told = Server(), Told()
    sending = forwarder(server, told)
    sending.send([message("first")], 0.1)  # a broker that has answered once is trusted
    server.away = True
    for job in ("one", "bad 1", "bad 2", "bad 3", "bad 4", "two"):
        sending.send([message(job)], 0.05)
    server.away = False
    postponed = told.wait_for(events.MessagePostponed)
    until(lambda: sending.status().messages == 4)
    assert server.published == ["first", "one", "two"]
    assert isinstance(postponed, events.MessagePostponed)
    assert "an odd message" in postponed.error
    sending.close(1.0)


def test_an_unexpected_error_does_not_stop_publishing_for_good() -> None:
    server, told = Server(), Told()
    sending = forwarder(server, told)
    sending.send([message("first")], 0.1)
    server.away = True
    sending.send([message("kept")], 0.05)  # the breaker opens
    server.away = False
    until(lambda: sending.status().messages == 0)
    with pytest.raises(ValueError, match="odd"):
        sending.send([message("bad")], 0.1)
    sending.send([message("next")], 0.1)
    assert server.published == ["first", "kept", "next"]
    sending.close(1.0)


def test_a_caller_whose_time_is_over_leaves_the_breaker_able_to_try_again() -> None:
    server, told = Server(), Told()
    sending = forwarder(server, told)
    sending.send([message("first")], 0.1)
    server.away = True
    sending.send([message("kept")], 0.05)  # its pause outlasts the time that it has
    server.away = False
    until(lambda: sending.status().messages == 0)
    assert server.published == ["first", "kept"]
    sending.close(1.0)
