"""Detects deliveries that were settled here before (the idempotent receiver pattern)."""

from __future__ import annotations

from collections import OrderedDict

from umbel.messages import Lease


class DuplicateFilter:
    """Remembers the last ``size`` leases with a final outcome.

    A broker that delivers at least once may deliver one of them again. Job and fencing number
    identify a delivery: a replayed job has the same id but a new fencing number, and runs.
    """

    def __init__(self, size: int = 100) -> None:
        self._size = size
        self._seen: OrderedDict[tuple[str, int], None] = OrderedDict()

    def remember(self, lease: Lease) -> None:
        """Remember a lease that was settled."""
        if self._size:
            self._seen[(lease.job, lease.fence)] = None
            while len(self._seen) > self._size:
                self._seen.popitem(last=False)

    def knows(self, lease: Lease) -> bool:
        """Return whether the lease was settled before."""
        return (lease.job, lease.fence) in self._seen
