"""Elections: of several candidates, one is the leader.

The leader holds the entry ``elections/<name>`` under a lease. A lease alone is not enough: after a
clock jump or a pause of the process, a leader may believe that it still leads. So every commit that
it makes as the leader names ``checks``, and has no effect if another leader was elected.
"""

from __future__ import annotations

from umbel.backends import Coordination, Put

ELECTIONS = "elections/"
_NOT_LEADING = -1
"""A revision that no entry has."""


class Election:
    """One candidate. ``campaign`` has to be called more often than once per ``seconds``."""

    def __init__(
        self, coordination: Coordination, name: str, candidate: str, *, seconds: float
    ) -> None:
        self._coordination = coordination
        self._key = ELECTIONS + name
        self._candidate = candidate
        self._seconds = seconds
        self._revision = 0

    @property
    def checks(self) -> dict[str, int]:
        """What each commit of the leader has to check. It never holds for other candidates."""
        return {self._key: self._revision or _NOT_LEADING}

    async def campaign(self) -> bool:
        """Become the leader, or stay it; return whether this candidate leads now."""
        if self._revision:
            lost = await self._coordination.renew(self.checks, self._seconds)
            if not lost:
                return True
            self._revision = 0
        put = Put(self._key, self._candidate.encode(), self._seconds)
        self._revision = await self._coordination.commit({self._key: 0}, [put]) or 0
        return bool(self._revision)

    async def leader(self) -> str | None:
        """Return the name of the candidate that leads now."""
        for entry in (await self._coordination.read(self._key)).entries:
            if entry.key == self._key:
                return entry.value.decode(errors="replace")
        return None

    async def resign(self) -> None:
        """Let another candidate lead at once. Does nothing if this one does not lead."""
        if self._revision:
            await self._coordination.commit(self.checks, deletes=[self._key])
            self._revision = 0
