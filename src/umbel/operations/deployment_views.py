"""What somebody who deploys sees, as plain values."""

from __future__ import annotations

import msgspec

from umbel.backends import Deployment, RunTimes


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A job that runs during a deployment."""

    job: str
    task: str
    queue: str
    seconds: float
    """Since it was claimed."""
    interruptible: bool


class StandingView(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker stands to a deployment."""

    name: str
    host: str
    pid: int
    incarnation: str
    confirmed: bool
    """Whether it has said that it fetches nothing any more."""
    silent: float
    """Seconds since its last heartbeat."""
    lapsed: bool = False
    """Whether its heart stood still for so long that it does not count."""
    runs: tuple[RunView, ...] = ()

    @property
    def in_the_way(self) -> tuple[RunView, ...]:
        """What has to end first."""
        return tuple(run for run in self.runs if not run.interruptible)


class CodeChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The application as loaded here, against what workers run."""

    changed: dict[str, tuple[str, ...]] = {}
    """Tasks whose code is another one, and the workers that have the old one."""
    new: dict[str, tuple[str, ...]] = {}
    """Tasks that workers do not know yet."""
    removed: dict[str, int] = {}
    """Tasks that workers know and the application has not, and how many of their jobs wait."""
    restart: tuple[str, ...] = ()
    """Workers that run other code than this."""
    incomparable: dict[str, str] = {}
    """Workers whose code cannot be compared, and why."""
    others: int = 0
    """Workers that have no task in common with it."""


class DeployView(msgspec.Struct, frozen=True, kw_only=True):
    """How a deployment stands."""

    deployment: Deployment | None
    workers: tuple[StandingView, ...] = ()
    code: CodeChanges | None = None

    @property
    def silent(self) -> list[StandingView]:
        """Workers that have not confirmed, and count."""
        return [one for one in self.workers if not one.confirmed and not one.lapsed]

    @property
    def in_the_way(self) -> list[tuple[StandingView, RunView]]:
        """What has to end first, longest first."""
        found = [(one, r) for one in self.workers if not one.lapsed for r in one.in_the_way]
        return sorted(found, key=lambda pair: -pair[1].seconds)

    @property
    def ready(self) -> bool:
        """Whether all workers have confirmed, and run nothing that must not be interrupted."""
        return not self.silent and not self.in_the_way


class AuditedTask(RunTimes, frozen=True, kw_only=True):
    """A task that breaks the rule: short, or interruptible."""

    share: float
    """Which part of its runs took too long."""
    advice: str


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """Which tasks would hold a deployment up."""

    longer_than: float
    since: float
    tasks: tuple[AuditedTask, ...]
