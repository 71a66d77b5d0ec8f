"""The idempotent receiver: knows the last messages it has finished with."""

from __future__ import annotations

from collections import OrderedDict

from umbel.messages import Lease


class Receiver:
    """Remembers the last ``size`` leases that were settled for good.

    A broker that delivers at least once may deliver one of them again. Job and fencing number
    identify a delivery: a replayed job has the same id but a new number, and runs.
    """

    def __init__(self, size: int = 100) -> None:
        self._size = size
        self._seen: OrderedDict[tuple[str, int], None] = OrderedDict()

    def remember(self, lease: Lease) -> None:
        """This one is done with."""
        if self._size:
            self._seen[(lease.job, lease.fence)] = None
            while len(self._seen) > self._size:
                self._seen.popitem(last=False)

    def knows(self, lease: Lease) -> bool:
        """Whether it was done with before."""
        return (lease.job, lease.fence) in self._seen
