"""Sends envelopes in a caller's own thread, over a connection of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence

from umbel.backends.blocking import LostNow, Meanwhile
from umbel.backends.nats.address import Home
from umbel.backends.nats.blocking_connection import Direct
from umbel.backends.nats.jetstream import check_stored
from umbel.backends.nats.lanes import Lanes
from umbel.backends.nats.outgoing import is_missing
from umbel.backends.nats.raw_connection import Line
from umbel.backends.nats.sender import CONFIRMED, TRIES, Parcel, packed, unconfirmed, windows
from umbel.backends.transport import Lane
from umbel.messages import Envelope, random_hex


class DirectSender:
    """See ``BlockingTransport.send_now``. Connects on use and again after a loss."""

    def __init__(self, home: Home, lanes: Lanes) -> None:
        self._home = home
        self._lanes = lanes
        self._direct = Direct(home)

    def send(
        self, envelopes: Sequence[Envelope], timeout: float, lost: LostNow, meanwhile: Meanwhile
    ) -> int:
        """All are durable when it returns. Where there is no stream, one is made.

        Gives how many bytes the server takes, with the headers.
        """
        until = time.monotonic() + timeout
        sending = random_hex(8)
        with self._direct.using(until) as line:
            for window in windows(packed(envelopes, self._lanes, sending, line.max_payload)):
                self._deliver(line, window, until, lost, meanwhile)
            return line.max_payload

    def close(self) -> None:
        """Free the connection. Twice is fine."""
        self._direct.close()

    def _deliver(
        self,
        line: Line,
        parcels: list[Parcel],
        until: float,
        lost: LostNow,
        meanwhile: Meanwhile,
    ) -> None:
        def tell(lane: Lane) -> None:
            lost(lane, until - time.monotonic())

        for _ in range(TRIES):
            line.until = min(until, time.monotonic() + CONFIRMED)
            meanwhile.begin()
            line.post([parcel.post for parcel in parcels])
            meanwhile.finish()
            line.until = min(until, time.monotonic() + CONFIRMED)
            answers = line.answers()
            if None in answers:
                raise unconfirmed(self._home.address, answers.count(None))
            absent: list[Parcel] = []
            for parcel, answer in zip(parcels, answers, strict=True):
                if answer is not None and is_missing(answer):
                    absent.append(parcel)
                elif answer is not None:
                    check_stored(answer.data)
            if not absent:
                return
            for lane in dict.fromkeys(parcel.lane for parcel in absent):
                self._lanes.make_now(line, lane, tell)
            parcels = absent
        raise unconfirmed(self._home.address, len(parcels))
