"""What a backend is: it opens the roles of one address, or of several that work together."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from umbel.backends.broker import Broker
from umbel.backends.control import Control
from umbel.backends.coordination import Coordination
from umbel.backends.erasing import NamespaceEraser
from umbel.backends.gates import Gates
from umbel.backends.joins import Joins
from umbel.backends.records import Records
from umbel.backends.registry import Registry
from umbel.backends.routes import Routes
from umbel.backends.steps import Steps, Transactions


class Roles(msgspec.Struct, frozen=True):
    """The adapters of one event loop, one for each role. This is the only list of the roles."""

    broker: Broker
    records: Records
    registry: Registry
    control: Control
    gates: Gates
    steps: Steps
    routes: Routes
    joins: Joins
    coordination: Coordination

    async def close(self) -> None:
        """Close all adapters."""
        for role in msgspec.structs.astuple(self):
            await role.close()


class Backend(Protocol):
    """Opens adapters for an event loop, and keeps the schema up to date."""

    def open(self, *, is_loop_dedicated: bool = False) -> Roles:
        """Return adapters for the event loop that uses them.

        ``is_loop_dedicated`` says that the loop runs nothing else and may therefore be blocked.
        """

    async def migrate(self) -> list[int]:
        """Bring the schema up to date and return the numbers of the migrations applied."""

    async def version(self) -> tuple[int, int]:
        """Return the version of the schema there, and the newest version that this code knows."""

    def eraser(self) -> NamespaceEraser:
        """Return what deletes the namespace, for the event loop that uses it.

        Raises:
            ConfigurationError: the backend has no access to the servers.
        """

    def transactions(self) -> Transactions:
        """Return transactions of the store's database, for steps that are part of one."""

    async def unwrap(self, connection: Any) -> Any:
        """Return the driver's connection inside the one that async code passed."""


class StoreBackend(Backend, Protocol):
    """A backend that has a store, so a separate broker can carry messages for it."""

    def open(self, *, is_loop_dedicated: bool = False, as_job_store: bool = False) -> Roles:
        """Return adapters. With ``as_job_store``, the broker is the job store of a pair."""
