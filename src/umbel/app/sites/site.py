"""What a site is: one address, or two that work as one."""

from __future__ import annotations

from typing import Any, Protocol

from umbel.router import Backend
from umbel.stores import Transactions


class Site(Protocol):
    """Opens adapters for an event loop, and keeps the schema there."""

    def open(self, *, inline: bool = False) -> Backend:
        """Adapters for the loop that will use them. ``inline``: it has nothing else to do."""

    async def migrate(self) -> list[int]:
        """Bring the schema up to date; returns the numbers of what was applied."""

    async def version(self) -> tuple[int, int]:
        """The schema's version there, and the newest this Umbel knows."""

    def transactions(self) -> Transactions:
        """Transactions of the store's own database, for steps that are part of one."""

    async def unwrap(self, connection: Any) -> Any:
        """The driver connection inside what async code handed over."""


class StoreSite(Site, Protocol):
    """A site that remembers, and so can keep the books for a broker elsewhere."""

    def open(self, *, inline: bool = False, ledger: bool = False) -> Backend:
        """``ledger``: its broker is one that keeps books."""
