"""Deletes everything that a namespace has on its servers. Only operators use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class NamespaceEraser(Protocol):
    """Deletes a namespace, in batches. Each call may be repeated, also after a crash."""

    async def count(self) -> dict[str, int]:
        """Return how many rows or keys of each kind the namespace has in the store."""

    async def delete(self, limit: int) -> int:
        """Delete up to ``limit`` rows or keys of the namespace, and return how many.

        If it returns fewer, nothing is left of what was there when it was called first.
        """

    async def remove_queues(self, queues: Sequence[str]) -> None:
        """Delete these queues with their messages from the servers that carry messages.

        A server that does not delete queues on request keeps them empty. A store that carries its
        messages itself has no such queues.
        """

    async def close(self) -> None:
        """Free connections. Closing twice is fine."""
