"""Group commit: whoever publishes while a batch is on its way travels with the next one.

A lone call is sent at once, alone. Callers that come meanwhile are sent together in one round
trip and one transaction. Nobody waits longer than the deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from umbel.brokers import Broker, Published
from umbel.clock import Clock
from umbel.errors import PublishTimeout, Unavailable
from umbel.messages import Envelope

_BATCH = 2_000
_PAUSE = 0.1


class _Parcel:
    """One caller's envelopes and the answer it waits for."""

    __slots__ = ("answer", "envelopes", "until")

    def __init__(self, envelopes: Sequence[Envelope], until: float) -> None:
        self.envelopes = envelopes
        self.until = until
        self.answer: asyncio.Future[list[Published]] = asyncio.get_running_loop().create_future()

    @property
    def travels_alone(self) -> bool:
        """A conflict rolls its batch back, and nobody else's messages with it."""
        return any(e.unique is not None and e.on_conflict != "return" for e in self.envelopes)


class Publisher:
    """Publishes for every caller of one application. Lives on the bridge's loop."""

    def __init__(self, broker: Broker, clock: Clock, *, deadline: float) -> None:
        self._broker = broker
        self._clock = clock
        self._deadline = deadline
        self._waiting: list[_Parcel] = []
        self._sender: asyncio.Task[None] | None = None

    async def publish(self, envelopes: Sequence[Envelope]) -> list[Published]:
        """Durable when it returns.

        Raises:
            PublishTimeout: not confirmed within the deadline. DuplicateJob: a unique key is held.
        """
        parcel = _Parcel(envelopes, self._clock.monotonic() + self._deadline)
        self._waiting.append(parcel)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_all(), name="umbel publisher")
        return await parcel.answer

    async def _send_all(self) -> None:
        while self._waiting:
            parcels = self._next_batch()
            try:
                await self._send(parcels)
            except Exception as error:  # noqa: BLE001 - it is the callers' to handle
                # One caller's fault is not the others': find out whose it is.
                for parcel in parcels if len(parcels) > 1 else ():
                    await self._send_alone(parcel)
                _fail(parcels, error)
            except BaseException as error:
                _fail(parcels, error)
                raise

    async def _send_alone(self, parcel: _Parcel) -> None:
        try:
            await self._send([parcel])
        except Exception as error:  # noqa: BLE001 - it is the caller's to handle
            _fail([parcel], error)

    def _next_batch(self) -> list[_Parcel]:
        parcels: list[_Parcel] = []
        size = 0
        while self._waiting and size < _BATCH:
            alone = self._waiting[0].travels_alone
            if alone and parcels:
                break
            parcels.append(self._waiting.pop(0))
            size += len(parcels[-1].envelopes)
            if alone:
                break
        return [parcel for parcel in parcels if not parcel.answer.done()]

    async def _send(self, parcels: list[_Parcel]) -> None:
        """Try until it works or every caller's deadline has passed."""
        why: Exception | None = None
        while parcels := self._in_time(parcels, why):
            last = max(parcel.until for parcel in parcels) - self._clock.monotonic()
            try:
                async with asyncio.timeout(max(last, 0.001)):
                    envelopes = [envelope for parcel in parcels for envelope in parcel.envelopes]
                    published = await self._broker.publish(envelopes)
            except Unavailable as error:
                why = error
            except TimeoutError:
                why = TimeoutError("the broker does not answer")
            else:
                _answer(parcels, published)
                return
            await asyncio.sleep(min(_PAUSE, max(last, 0)))

    def _in_time(self, parcels: list[_Parcel], why: Exception | None) -> list[_Parcel]:
        now = self._clock.monotonic()
        late = [parcel for parcel in parcels if parcel.until <= now]
        if late:
            text = f"not published within {self._deadline:g} s: {why or 'the broker is busy'}"
            _fail(late, PublishTimeout(text))
        return [parcel for parcel in parcels if parcel.until > now]


def _answer(parcels: list[_Parcel], published: list[Published]) -> None:
    at = 0
    for parcel in parcels:
        end = at + len(parcel.envelopes)
        if not parcel.answer.done():
            parcel.answer.set_result(published[at:end])
        at = end


def _fail(parcels: list[_Parcel], error: BaseException) -> None:
    for parcel in parcels:
        if not parcel.answer.done():
            parcel.answer.set_exception(_copy(error))


def _copy(error: BaseException) -> Any:
    """Each waiter gets its own: one object raised in several threads mixes tracebacks."""
    return error if not isinstance(error, PublishTimeout) else PublishTimeout(*error.args)
