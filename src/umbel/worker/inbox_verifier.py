"""Verifies messages that were sent to this worker alone, before they run."""

from __future__ import annotations

import asyncio

import anyio

from umbel.backends import InboxReceipt, Registry
from umbel.clock import Clock
from umbel.keys import KeyFile, Refusal, Refused, verify_signature
from umbel.messages import Delivery, is_inbox
from umbel.tasks.inbox import is_command
from umbel.telemetry import Telemetry, events
from umbel.worker.waiting_deliveries import WaitingDeliveries

_ALREADY_EXPIRED = 0.0
_REFUSALS = {
    InboxReceipt.DUPLICATE: Refused(Refusal.REPLAYED, "it was received before"),
    InboxReceipt.EXPIRED: Refused(
        Refusal.EXPIRED, "its signature is too old; send the message again"
    ),
}


class InboxVerifier(WaitingDeliveries):
    """Accepts each message once if a trusted key has signed it, and refuses the others.

    A message that came by a route needs no signature: it was sent to the worker that has its key.
    A job that was received before and is redelivered needs none either, because its run failed or
    its worker died.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        keys: KeyFile | None,
        is_closed: bool,
        is_signing: bool,
        is_shared: bool,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        super().__init__()
        self._registry = registry
        self._keys = keys if is_signing else None
        self._is_closed = is_closed
        self._is_signing = is_signing
        self._is_shared = is_shared
        self._clock = clock
        self._telemetry = telemetry

    async def check_keys(self, worker: str) -> None:
        """Warn if messages are not verified. Raise ConfigurationError if the keys are unusable."""
        if self._is_closed:
            self._telemetry.emit(events.InboxClosed(worker=worker))
        elif not self._is_signing:
            self._telemetry.emit(events.SigningOff(worker=worker))
        elif self._keys is not None:
            if not await asyncio.to_thread(self._keys.open):
                self._keys = None
        elif self._is_shared:
            self._telemetry.emit(events.InboxUnsigned(worker=worker))

    def must_verify(self, delivery: Delivery) -> bool:
        """Whether the delivery must be verified before it starts."""
        if self._keys is None and not self._is_closed:
            return False
        return is_inbox(delivery.envelope.queue) and not _came_by_a_route(delivery)

    async def verify(self) -> list[tuple[Delivery, Refused | None]]:
        """Wait for deliveries and verify them; return each with None, or why it is refused.

        Raises Unavailable: the store did not answer. The deliveries wait for the next call.
        """
        if not self._waiting:
            self._arrived = anyio.Event()
            await self._arrived.wait()
        deliveries = [*self._waiting.values()]
        valid_until: dict[str, float] = {}
        refusals: dict[str, Refused] = {}
        for delivery in deliveries:
            try:
                valid_until[delivery.id] = self._valid_until(delivery)
            except Refused as refusal:
                valid_until[delivery.id], refusals[delivery.id] = _ALREADY_EXPIRED, refusal
        receipts = await self._registry.record_inbox_receipts(valid_until)
        verified: list[tuple[Delivery, Refused | None]] = []
        for delivery in deliveries:
            if self._waiting.pop(delivery.lease, None) is None:
                continue  # cleared or dropped meanwhile
            receipt = receipts[delivery.id]
            is_accepted = receipt in (InboxReceipt.FIRST, InboxReceipt.REDELIVERED)
            if is_accepted and not self._is_closed:
                verified.append((delivery, None))
            else:
                reason = refusals.get(delivery.id) or _REFUSALS[receipt]
                self._emit_refused(delivery, reason)
                verified.append((delivery, reason))
        return verified

    def _valid_until(self, delivery: Delivery) -> float:
        """Return until when its signature is valid. Raise Refused."""
        if self._keys is None or self._is_closed:
            raise Refused(
                Refusal.CLOSED, "this worker accepts no messages to itself: it runs with --no-inbox"
            )
        try:
            return verify_signature(delivery.envelope, self._keys.ring, self._clock.now())
        except Refused:
            raise
        except Exception as error:  # noqa: BLE001 - a malformed message must not block the others
            raise Refused(Refusal.FORGED, f"it cannot be checked: {error!r}") from None

    def _emit_refused(self, delivery: Delivery, refusal: Refused) -> None:
        self._telemetry.emit(
            events.InboxRefused(
                job=delivery.id,
                task=delivery.envelope.subject,
                why=refusal.why.value,
                reason=str(refusal),
            )
        )


def _came_by_a_route(delivery: Delivery) -> bool:
    """Whether the job's key brought it here. Commands are for one worker, whatever its keys."""
    is_routed = any(slot.route for slot in delivery.slots)
    return is_routed and not is_command(delivery.envelope.subject)
