"""The door of a worker's own queue: what others send to this worker alone is checked first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import anyio

from umbel.backends import Hearing
from umbel.clock import Clock
from umbel.keys import KeyFile, Refusal, Refused, read_seal
from umbel.messages import Delivery, Lease, is_inbox
from umbel.tasks.inbox import is_command
from umbel.telemetry import Telemetry, events
from umbel.worker.intake import Intake

_NEVER = 0.0
_VERDICTS = {
    Hearing.COPY: Refused(Refusal.REPLAYED, "it was heard before"),
    Hearing.LATE: Refused(Refusal.EXPIRED, "its signature is too old; send it again"),
}


class InboxVerifier:
    """Lets pass what somebody trusted has signed, once each; refuses the rest.

    What came by a route needs no signature: it was sent to whoever has its key. Nor does a job
    that was heard before and comes back, for its run failed or its worker died.
    """

    name = "guard"

    def __init__(
        self,
        intake: Intake,
        *,
        keys: KeyFile | None,
        closed: bool,
        warns: bool,
        admit: Callable[[Delivery], None],
        refuse: Callable[[Delivery, str], None],
        checked: Callable[[], None],
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._intake = intake
        self._keys = keys
        self._closed = closed
        self._warns = warns
        self._admit = admit
        self._refuse = refuse
        self._checked = checked
        self._clock = clock
        self._telemetry = telemetry
        self._waiting: dict[Lease, Delivery] = {}
        self._came = anyio.Event()

    async def announce(self, worker: str) -> None:
        """Warn of a door that is not guarded. Raises what is wrong with the keys."""
        if self._closed:
            self._telemetry.emit(events.InboxClosed(worker=worker))
        elif self._keys is not None:
            await asyncio.to_thread(self._keys.check)
        elif self._warns:
            self._telemetry.emit(events.InboxUnguarded(worker=worker))

    def concerns(self, delivery: Delivery) -> bool:
        """Whether it is to be checked before it starts."""
        if self._keys is None and not self._closed:
            return False
        return is_inbox(delivery.envelope.queue) and not _came_by_a_route(delivery)

    def put(self, delivery: Delivery) -> None:
        """Check it; then it starts or is refused."""
        self._waiting[delivery.lease] = delivery
        self._came.set()

    def clear(self) -> list[Delivery]:
        """Check no more of them. What was waiting for it."""
        waiting, self._waiting = self._waiting, {}
        return [*waiting.values()]

    def drop(self, leases: Collection[Lease]) -> None:
        """Somebody else has these by now."""
        for lease in leases:
            self._waiting.pop(lease, None)

    def waiting(self, kind: str) -> int:
        """How many wait to be checked that may need a place of this kind."""
        return sum(one.envelope.kind in ("", kind) for one in self._waiting.values())

    async def run(self, working: Callable[[], None]) -> None:
        """Check what comes. What could not be checked, for a server is away, is checked again."""
        while True:
            if not self._waiting:
                self._came = anyio.Event()
                await self._came.wait()
            await self._check([*self._waiting.values()])
            self._checked()
            working()

    async def _check(self, deliveries: list[Delivery]) -> None:
        untils: dict[str, float] = {}
        refusals: dict[str, Refused] = {}
        for delivery in deliveries:
            try:
                untils[delivery.id] = self._until(delivery)
            except Refused as refusal:
                untils[delivery.id], refusals[delivery.id] = _NEVER, refusal
        found = await self._intake.witness(untils)
        for delivery in deliveries:
            if self._waiting.pop(delivery.lease, None) is None:
                continue  # given back, or lost, in the meantime
            hearing = found[delivery.id]
            if hearing in (Hearing.FIRST, Hearing.AGAIN) and not self._closed:
                self._admit(delivery)
            else:
                self._turn_away(delivery, refusals.get(delivery.id) or _VERDICTS[hearing])

    def _until(self, delivery: Delivery) -> float:
        """Until when its seal holds. Raises Refused."""
        if self._keys is None or self._closed:
            raise Refused(Refusal.CLOSED, "this worker hears nobody; it runs with --no-inbox")
        try:
            return read_seal(delivery.envelope, self._keys.ring, self._clock.now())
        except Refused:
            raise
        except Exception as error:  # noqa: BLE001 - one odd message must not keep the others out
            raise Refused(Refusal.FORGED, f"it cannot be checked: {error!r}") from None

    def _turn_away(self, delivery: Delivery, refusal: Refused) -> None:
        self._telemetry.emit(
            events.InboxRefused(
                job=delivery.id,
                task=delivery.envelope.subject,
                why=refusal.why.value,
                reason=str(refusal),
            )
        )
        self._refuse(delivery, f"inbox: {refusal}")


def _came_by_a_route(delivery: Delivery) -> bool:
    """Commands do not: they are for one worker, whatever keys it has."""
    routed = any(slot.route for slot in delivery.slots)
    return routed and not is_command(delivery.envelope.subject)
