"""The role that stores deployments, and knows which jobs run, wait and have run too long.

There is one row for a namespace. It is created together with its pauses and ends together with
them, each in one step, so that after a crash either both exist or neither does::

    begin ─▶ waiting ──go──▶ go ──end──▶ ended
                │ end, or it was not renewed in time
                └─────────▶ aborted

While it waits, the command that began it renews it. If it is not renewed, it lapses by the store's
clock, and the upkeep of any worker ends it. After "go" it stays until it is ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from umbel.backends.control import Scope
from umbel.errors import ConfigurationError

DEPLOY = "deploy"
"""The holder of a deployment's pauses, which are independent of operators' pauses."""

LAPSED = "it was not renewed in time"
"""The outcome of a deployment whose command died."""

Stage = Literal["waiting", "go", "ended", "aborted"]


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
        return some or [("all", "")]


class Deployment(DeploymentPlan, frozen=True, kw_only=True):
    """A deployment, as read from the store. Durations are measured by the store's clock."""

    state: Stage
    epoch: int
    """The control epoch of its pauses: a worker that has confirmed it fetches nothing paused."""
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


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A job that an incarnation holds."""

    job: str
    task: str
    queue: str
    owner: str
    """The incarnation that holds it."""
    age: float
    """Seconds since it was claimed, by the store's clock."""


class RunTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of the runs of a task, of which some took too long."""

    task: str
    runs: int
    long: int
    """How many runs took too long."""
    p50: float
    p95: float
    worst: float
    jobs: tuple[str, ...]
    """The jobs of the longest runs, longest first."""


class Waiting(msgspec.Struct, frozen=True):
    """How many jobs of one task in one queue wait."""

    queue: str
    task: str
    jobs: int


class Deployments(Protocol):
    """There is one deployment at a time. Every method is atomic."""

    async def begin(self, plan: DeploymentPlan, *, lease: float, force: bool) -> Deployment:
        """Pause, and record the deployment; it lapses after ``lease`` seconds.

        If another deployment is in progress, nothing happens and that one is returned, unless it
        has lapsed or ``force`` replaces it: then nothing can be fetched between the two. Safe to
        repeat.
        """

    async def renew(self, deployment: str, *, lease: float) -> Deployment | None:
        """Let it lapse ``lease`` seconds from now. Return the last deployment, of any owner."""

    async def go(self, deployment: str) -> bool:
        """Change its state from "waiting" to "go"; from then on it does not lapse.

        Returns False if it was no longer waiting; then nothing has changed. Safe to repeat.
        """

    async def end(
        self, deployment: str, *, state: Literal["ended", "aborted"], outcome: str
    ) -> Deployment | None:
        """End it and remove its pauses only. Return None if it had ended. Safe to repeat."""

    async def end_lapsed(self) -> Deployment | None:
        """End a deployment that was not renewed in time; return it if this call has ended it."""

    async def last(self) -> Deployment | None:
        """Return the deployment in progress, or the last one."""

    async def runs(self, owners: Sequence[str]) -> list[Run]:
        """Return the jobs that these incarnations hold, oldest first.

        After they have confirmed an epoch, it includes all that they claimed before that epoch.
        """

    async def count_waiting(self) -> list[Waiting]:
        """Return how many live jobs of each queue and task are not running.

        If there are very many, only the oldest are counted.
        """

    async def run_times(
        self, *, since: float, longer: float, but: Sequence[str], worst: int
    ) -> list[RunTimes]:
        """Return tasks that ran longer than ``longer`` seconds, longest first, except those named.

        It covers the runs recorded in the last ``since`` seconds; a retried job has several. Time
        in a queue or a waiting list does not count. Each result names up to ``worst`` jobs.
        """

    async def close(self) -> None:
        """Free connections. Closing twice is fine."""


def read_deployment(row: Sequence[Any]) -> Deployment:
    """Return the deployment of a row. Every adapter selects the same columns."""
    (plan, state, epoch, since, until, went, ended, outcome, now) = row
    planned = msgspec.json.decode(plan, type=DeploymentPlan)
    return Deployment(
        **msgspec.structs.asdict(planned),
        state=state,
        epoch=epoch,
        since=since,
        stood=max(0.0, (now if ended is None else ended) - since),
        left=None if until is None else until - now,
        ready=None if went is None else max(0.0, now - went),
        ended=None if ended is None else max(0.0, now - ended),
        outcome=outcome,
    )
