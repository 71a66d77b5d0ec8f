"""The worker's only port: a router in the same process, or a link to a router elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from umbel.backends import Demand, Roles, WorkerEntry
from umbel.messages import Delivery, Lease, Rule, Settlement


class Intake(Protocol):
    """Fetches, extends and settles jobs of some queues. Belongs to one event loop.

    The methods are those for which a router does more than to pass on a call. For everything else
    a worker uses the roles.
    """

    @property
    def roles(self) -> Roles:
        """The roles of the backend.

        Over a link, a worker may call only the methods that ``app.link_service`` allows workers.
        """

    async def register(self, worker: WorkerEntry) -> int:
        """Register an incarnation before its first fetch. Return its index. Raise IndexTaken."""

    async def unregister(self, incarnation: str) -> None:
        """End an incarnation after its last settlement.

        Jobs that were claimed for it and never arrived go back to their queues.
        """

    async def fetch(
        self, owner: str, demand: Demand, wait: float, own: Sequence[str] = ()
    ) -> list[Delivery]:
        """Return jobs that may start now, from the worker's ``own`` queues first.

        Raises LeaseLost: the incarnation has ended. Raises Unavailable.
        """

    def stop_waiting(self) -> None:
        """Make a waiting fetch return now."""

    async def extend(self, owner: str, held: Sequence[Lease], older_than: float) -> list[Lease]:
        """Report which leases are held; return those that are lost."""

    async def settle(self, settlements: Sequence[Settlement]) -> list[Lease]:
        """Record outcomes; return the leases that were refused. Raise Unavailable."""

    async def assign_kinds(self, kinds: Mapping[str, str]) -> int:
        """Set the kind of queued jobs whose sender did not know it."""

    async def has_waiting_jobs(self, kinds: Sequence[str], without: Sequence[str] = ()) -> bool:
        """Return whether a fetch of these kinds, without some tasks, would find a job."""

    async def declare(
        self,
        rules: Sequence[Rule],
        tasks: Sequence[str],
        members: Mapping[str, Mapping[str, dict[str, Any]]],
    ) -> None:
        """Set the rules of gates and the declared members of each pool.

        Rules of the ``tasks`` that are not in ``rules`` are removed.
        """

    async def report_failed_check(self, pool: str, member: str, failures: int) -> None:
        """Quarantine a pool member. With each failure, its next check is due later."""

    async def report_passed_check(self, pool: str, member: str) -> None:
        """Make a pool member ready again."""

    async def report_missing_tasks(self, tasks: Sequence[str]) -> list[str]:
        """Pause those of these tasks that no running worker has, and return them. Safe to repeat.

        Their jobs wait until a worker has the task.
        """

    async def pause_worker(self, incarnation: str, reason: str) -> None:
        """Pause the worker of this incarnation, as an operator would."""

    async def close(self) -> None:
        """Close the connections."""
