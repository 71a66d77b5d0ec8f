"""Deployments: what is paused while a new version of the code is installed.

There is one deployment at a time in a namespace, the entry ``deployment/last``. It begins together
with its pauses and ends together with them, each in one commit, so that after a crash either both
exist or neither does::

    begin ─▶ waiting ──go──▶ go ──end──▶ ended
                │ end, or it was not renewed in time
                └─────────▶ aborted

While it waits, its pauses and the entry ``deployment/lease`` are under a lease that the command
which began it renews. If that command dies, the lease lapses by the store's clock and workers fetch
again; the upkeep of any worker then records the end. After "go", its pauses stay until it is ended.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from umbel.backends import Coordination, Entry, Put, json_value
from umbel.backends.coordination import check_commit
from umbel.control.pauses import Scope, pause_key, pause_value
from umbel.errors import ConfigurationError

DEPLOY = "deploy"
"""The holder of a deployment's pauses, which are independent of operators' pauses."""

LAPSED = "it was not renewed in time"
"""The outcome of a deployment whose command died."""

Stage = Literal["waiting", "go", "ended", "aborted"]

_SECTION = "deployment/"
_LAST = _SECTION + "last"
_LEASE = _SECTION + "lease"


class DeploymentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Who deploys, and what is paused for it: everything, or these workers and queues.

    Raises:
        ConfigurationError: a name of a worker or queue is empty.
    """

    id: str
    who: str
    host: str
    pid: int
    reason: str = ""
    workers: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("workers", "queues"):
            if not all(name.strip() for name in getattr(self, field)):
                raise ConfigurationError(
                    f"{field} of a deployment: a name is empty; give names, or leave {field} out"
                )

    def pauses(self) -> list[tuple[Scope, str]]:
        """Return what is paused while the deployment lasts."""
        some: list[tuple[Scope, str]] = [("worker", name) for name in self.workers]
        some += [("queue", name) for name in self.queues]
        return [*dict.fromkeys(some)] or [("all", "")]

    def pause_keys(self) -> list[str]:
        """Return the keys of its pauses."""
        return [pause_key(scope, name, DEPLOY) for scope, name in self.pauses()]


class Deployment(DeploymentPlan, frozen=True, kw_only=True):
    """A deployment, as read from the store. Durations are measured by the store's clock."""

    state: Stage
    epoch: int
    """The epoch of its pauses: a worker that has confirmed it fetches nothing paused."""
    since: float
    """When it began."""
    stood: float
    """Seconds for which fetching has been, or was, paused."""
    left: float | None = None
    """Seconds until it lapses unless it is renewed; None if it does not lapse."""
    ready: float | None = None
    """Seconds since it was "go"; None before."""
    ended: float | None = None
    """Seconds since it ended."""
    outcome: str = ""
    """Why it ended."""

    @property
    def is_under_way(self) -> bool:
        """Whether its pauses apply."""
        return self.state in ("waiting", "go")

    @property
    def has_lapsed(self) -> bool:
        """Whether it was not renewed in time and has to end."""
        return self.left is not None and self.left < 0


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    """The value of ``deployment/last``."""

    plan: DeploymentPlan
    state: Stage
    since: float
    epoch: int = 0
    """0 in the commit that begins it, whose revision is the epoch."""
    went: float | None = None
    ended: float | None = None
    outcome: str = ""


class _Snapshot(msgspec.Struct, frozen=True):
    """The entries at one moment."""

    now: float
    revision: int = 0
    """The revision of ``deployment/last``."""
    lease: Entry | None = None
    stored: _Stored | None = None

    @property
    def checks(self) -> dict[str, int]:
        """What must be unchanged for a commit that was decided by this snapshot."""
        return {_LAST: self.revision, _LEASE: self.lease.revision if self.lease else 0}

    @property
    def epoch(self) -> int:
        return (self.stored.epoch if self.stored else 0) or self.revision

    def deployment(self) -> Deployment | None:
        """Return the deployment as readers see it."""
        stored, now = self.stored, self.now
        if stored is None:
            return None
        left = None
        if stored.state == "waiting":
            left = (self.lease.left if self.lease else None) or -1.0
        return Deployment(
            **msgspec.structs.asdict(stored.plan),
            state=stored.state,
            epoch=self.epoch,
            since=stored.since,
            stood=max(0.0, (now if stored.ended is None else stored.ended) - stored.since),
            left=left,
            ready=None if stored.went is None else max(0.0, now - stored.went),
            ended=None if stored.ended is None else max(0.0, now - stored.ended),
            outcome=stored.outcome,
        )


class Deployments:
    """Begins and ends deployments. Every method is safe to repeat."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    async def begin(self, plan: DeploymentPlan, *, lease: float, force: bool) -> Deployment:
        """Pause, and record the deployment; it lapses after ``lease`` seconds.

        If another deployment is in progress, nothing happens and that one is returned, unless it
        has lapsed or ``force`` replaces it: then nothing can be fetched between the two.
        """
        keys = plan.pause_keys()
        while True:
            seen = await self._read()
            found = seen.deployment()
            is_active = found is not None and found.is_under_way and not found.has_lapsed
            if found is not None and is_active and (found.id == plan.id or not force):
                return found
            stored = _Stored(plan=plan, state="waiting", since=seen.now)
            pause = pause_value(seen.now, plan.reason)
            puts = [Put(_LAST, json_value(stored)), Put(_LEASE, b"", lease)]
            puts += [Put(key, pause, lease) for key in keys]
            old = [key for key in (found.pause_keys() if found else ()) if key not in keys]
            if await self._coordination.commit(seen.checks, puts, old) is not None:
                begun = await self.last()
                assert begun is not None
                return begun

    async def renew(self, deployment: str, *, lease: float) -> Deployment | None:
        """Let it lapse ``lease`` seconds from now. Return the last deployment, of any owner."""
        seen = await self._read()
        if _is_ours(seen, deployment, "waiting") and seen.lease is not None:
            assert seen.stored is not None
            held = dict.fromkeys([_LEASE, *seen.stored.plan.pause_keys()], seen.epoch)
            await self._coordination.renew(held, lease)
            seen = await self._read()
        return seen.deployment()

    async def go(self, deployment: str) -> bool:
        """Change its state from "waiting" to "go"; from then on it does not lapse.

        Returns False if it was no longer waiting; then nothing has changed.
        """
        while True:
            seen = await self._read()
            if _is_ours(seen, deployment, "go"):
                return True
            if not _is_ours(seen, deployment, "waiting") or seen.lease is None:
                return False
            assert seen.stored is not None
            plan = seen.stored.plan
            changes = {"state": "go", "epoch": seen.epoch, "went": seen.now}
            stored = msgspec.structs.replace(seen.stored, **changes)
            pause = pause_value(stored.since, plan.reason)
            puts = [Put(_LAST, json_value(stored)), *(Put(key, pause) for key in plan.pause_keys())]
            if await self._coordination.commit(seen.checks, puts, [_LEASE]) is not None:
                return True

    async def end(
        self, deployment: str, *, state: Literal["ended", "aborted"], outcome: str
    ) -> Deployment | None:
        """End it and remove its pauses only. Return None if it had ended."""
        while True:
            seen = await self._read()
            if not _is_ours(seen, deployment, "waiting") and not _is_ours(seen, deployment, "go"):
                return None
            if await self._end(seen, state, outcome):
                return await self.last()

    async def end_lapsed(self) -> Deployment | None:
        """End a deployment that was not renewed in time; return it if this call has ended it."""
        seen = await self._read()
        found = seen.deployment()
        if found is None or not found.has_lapsed or not await self._end(seen, "aborted", LAPSED):
            return None
        return await self.last()

    async def last(self) -> Deployment | None:
        """Return the deployment in progress, or the last one."""
        return (await self._read()).deployment()

    async def _end(self, seen: _Snapshot, state: Stage, outcome: str) -> bool:
        """Record the end. Return False if something has changed since ``seen``."""
        assert seen.stored is not None
        changes = {"state": state, "epoch": seen.epoch, "ended": seen.now, "outcome": outcome}
        stored = msgspec.structs.replace(seen.stored, **changes)
        deletes = [_LEASE, *seen.stored.plan.pause_keys()]
        puts = [Put(_LAST, json_value(stored))]
        return await self._coordination.commit(seen.checks, puts, deletes) is not None

    async def _read(self) -> _Snapshot:
        page = await self._coordination.read(_SECTION)
        entries = {entry.key: entry for entry in page.entries}
        last = entries.get(_LAST)
        if last is None:
            return _Snapshot(page.now, lease=entries.get(_LEASE))
        try:
            stored = msgspec.json.decode(last.value, type=_Stored)
            check_commit([], [_LAST, _LEASE, *stored.plan.pause_keys()])
        except (msgspec.MsgspecError, ConfigurationError, UnicodeDecodeError, RecursionError):
            stored = None  # edited by hand: the next deployment replaces it
        return _Snapshot(page.now, last.revision, entries.get(_LEASE), stored)


def _is_ours(seen: _Snapshot, deployment: str, state: Stage) -> bool:
    stored = seen.stored
    return stored is not None and stored.plan.id == deployment and stored.state == state
