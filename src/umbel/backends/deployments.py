"""The role that knows of deployments: the one under way, what runs meanwhile, what ran too long.

There is one row for a namespace. It is made together with the pauses that belong to it and ends
together with them, each in one step, so that after a crash of anybody either both are there or
neither is::

    begin ─▶ waiting ──go──▶ go ──end──▶ ended
                │ end, or nobody renewed it: lapse
                └─────────▶ aborted

While it waits, whoever began it renews it. When nobody does, it lapses by the store's own clock,
and any worker's upkeep ends it. After "go" it stays until somebody ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from umbel.backends.control import Scope
from umbel.errors import ConfigurationError

DEPLOY = "deploy"
"""The holder of a deployment's pauses: operators' own stand beside them, untouched."""

LAPSED = "nobody renewed it"
"""Why it ended when whoever began it died."""

Stage = Literal["waiting", "go", "ended", "aborted"]


class DeploymentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Who wants to deploy, and what is to stand still for it: all, or these workers and queues.

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
        """What is paused while it lasts."""
        some: list[tuple[Scope, str]] = [("worker", name) for name in self.workers]
        some += [("queue", name) for name in self.queues]
        return some or [("all", "")]


class Deployment(DeploymentPlan, frozen=True, kw_only=True):
    """A deployment as the store tells it. Durations are by the store's clock."""

    state: Stage
    epoch: int
    """The control epoch of its pauses: a worker that has confirmed it fetches nothing of them."""
    since: float
    """When it began."""
    stood: float
    """Seconds that fetching has stood still, or stood."""
    left: float | None = None
    """Seconds until it lapses unless it is renewed; None when it does not."""
    ready: float | None = None
    """Seconds since it was "go"; None before."""
    ended: float | None = None
    """Seconds since it ended."""
    outcome: str = ""
    """Why it ended."""

    @property
    def is_under_way(self) -> bool:
        """Whether it keeps workers from fetching."""
        return self.state in ("waiting", "go")

    @property
    def has_lapsed(self) -> bool:
        """Whether it is to end because nobody renewed it."""
        return self.left is not None and self.left < 0


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A job that somebody holds."""

    job: str
    task: str
    queue: str
    owner: str
    """The incarnation that holds it."""
    age: float
    """Seconds since it was claimed, by the store's clock."""


class RunTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long a task's runs took, some of them longer than they should."""

    task: str
    runs: int
    long: int
    """How many of them took longer."""
    p50: float
    p95: float
    worst: float
    jobs: tuple[str, ...]
    """The jobs of the longest, longest first."""


class Waiting(msgspec.Struct, frozen=True):
    """Jobs of one task in one queue that do not run."""

    queue: str
    task: str
    jobs: int


class Deployments(Protocol):
    """One deployment at a time. Every step is whole, or did not happen."""

    async def begin(self, plan: DeploymentPlan, *, lease: float, force: bool) -> Deployment:
        """Pause, and note whose deployment it is; it lapses after ``lease`` seconds.

        Where another one is under way, nothing happens and that one is the answer, unless it has
        lapsed or ``force`` takes its place: then there is no moment between the two in which
        anything could be fetched. Safe to repeat.
        """

    async def renew(self, deployment: str, *, lease: float) -> Deployment | None:
        """Let it wait for ``lease`` seconds more. Gives the last there is, whosever that is."""

    async def go(self, deployment: str) -> bool:
        """From now on it does not lapse. False when it does not wait any more: then it is not "go".

        Safe to repeat.
        """

    async def end(
        self, deployment: str, *, state: Literal["ended", "aborted"], outcome: str
    ) -> Deployment | None:
        """Lift its pauses and no others. None when it is not under way any more. Safe to repeat."""

    async def lapse(self) -> Deployment | None:
        """End the one that nobody has renewed in time; gives it when it was this call that did."""

    async def last(self) -> Deployment | None:
        """The one under way, or the last there was."""

    async def runs(self, owners: Sequence[str]) -> list[Run]:
        """What these incarnations hold, oldest first. Whoever reads it after they have confirmed an
        epoch misses nothing that they claimed before it."""

    async def waiting(self) -> list[Waiting]:
        """How many jobs of each queue and task live and do not run.

        Where there are very many, only the oldest are counted.
        """

    async def run_times(
        self, *, since: float, longer: float, but: Sequence[str], worst: int
    ) -> list[RunTimes]:
        """Tasks that ran longer than ``longer`` seconds, but for those named, longest first.

        Of runs recorded in the last ``since`` seconds: a retried job has several. Time in a queue
        or a line does not count. ``worst`` jobs are named of each task.
        """

    async def close(self) -> None:
        """Free connections. Closing twice is fine."""


def read_deployment(row: Sequence[Any]) -> Deployment:
    """A deployment from a row of ``deployment``: every adapter selects the same columns."""
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
