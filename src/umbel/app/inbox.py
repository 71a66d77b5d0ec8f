"""Messages to one worker: finding the one that is meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from umbel.backends import Seat
from umbel.errors import UnknownWorker
from umbel.tasks import Signature


def addressed(signatures: Sequence[Signature[Any]], seats: list[Seat]) -> list[Signature[Any]]:
    """The calls with the indexes of the workers they name. Raises UnknownWorker."""
    return [
        replace(one, options=one.options.merged({"worker": _index(one.options.worker, seats)}))
        if isinstance(one.options.worker, str)
        else one
        for one in signatures
    ]


def _index(name: str, seats: list[Seat]) -> int:
    """Of the living one of that name, else of the one that may come back."""
    found = [seat for seat in seats if seat.worker == name]
    if not found:
        raise UnknownWorker(name, [seat.worker for seat in seats if seat.alive])
    return max(found, key=lambda seat: seat.alive).index
