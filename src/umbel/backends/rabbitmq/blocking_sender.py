"""Sends envelopes in a caller's own thread, over a connection of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence

from umbel.backends.blocking import LostNow, Meanwhile
from umbel.backends.rabbitmq.address import Home
from umbel.backends.rabbitmq.blocking_connection import Direct
from umbel.backends.rabbitmq.frames import Message
from umbel.backends.rabbitmq.messages import to_message
from umbel.backends.rabbitmq.queues import MOURNING, Queues
from umbel.backends.rabbitmq.sender import PAUSE, TRIES, untaken
from umbel.backends.transport import Lane
from umbel.messages import Envelope

_MOST = 2000
"""Messages on their way unconfirmed: nobody reads confirms while they are written."""


class DirectSender:
    """See ``BlockingTransport.send_now``. Connects on use and again after a loss."""

    def __init__(self, home: Home, queues: Queues, patience: float) -> None:
        self._home = home
        self._queues = queues
        self._direct = Direct(home, patience)

    @property
    def blocked(self) -> str:
        """Why the server takes no messages at the moment, as far as it has said so."""
        return self._direct.blocked

    def send(
        self, envelopes: Sequence[Envelope], timeout: float, lost: LostNow, meanwhile: Meanwhile
    ) -> None:
        """All are durable when it returns. What is not taken is sent again to a queue that is."""
        until = time.monotonic() + timeout
        lanes: dict[str, Lane] = {}
        messages: list[Message] = []
        for envelope in envelopes:
            lane = Lane(envelope.queue, envelope.kind)
            name = self._queues.name(lane)
            lanes[name] = lane
            messages.append(to_message(envelope, name))
        for at in range(0, len(messages), _MOST):
            self._send(messages[at : at + _MOST], lanes, until, lost, meanwhile)
        self._queues.saw(lanes.values())

    def close(self) -> None:
        """Free the connection. Twice is fine."""
        self._direct.close()

    def _send(
        self,
        left: list[Message],
        lanes: dict[str, Lane],
        until: float,
        lost: LostNow,
        meanwhile: Meanwhile,
    ) -> None:
        for number in range(TRIES):
            left = self._direct.publish(left, until, meanwhile.begin, meanwhile.finish)
            if not left:
                return
            for name in dict.fromkeys(one.queue for one in left):
                self._make(name, lanes[name], until, lost)
            time.sleep(PAUSE * number)
        raise untaken(self._home, left[0])

    def _make(self, name: str, lane: Lane, until: float, lost: LostNow) -> None:
        """See to it that a queue is there; ``Queues.open`` says why in these steps."""
        if self._direct.finds(name, until):
            return
        if self._queues.has_seen(lane):
            time.sleep(MOURNING)
        lost(lane, until - time.monotonic())
        self._direct.declare(name, until)
