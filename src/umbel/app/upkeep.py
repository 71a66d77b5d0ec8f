"""The periodic duties of the process that owns a store: workers without a router, and routers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from umbel.app.link_backend import LinkBackend
from umbel.backends import Backend
from umbel.clock import Clock
from umbel.configuration import Settings
from umbel.control import Deployments, Pauses
from umbel.router import (
    DeadWorkerReaper,
    DeploymentReaper,
    MissingTasks,
    Pruner,
    SharedInterval,
    StoreSweeper,
    one_worker,
)
from umbel.telemetry import Telemetry

_DAY_SECONDS = 86_400


def open_upkeep(
    backend: Backend,
    settings: Settings,
    clock: Clock,
    telemetry: Telemetry,
    every: float,
    *,
    is_router: bool = False,
) -> list[Callable[[], Awaitable[object]]]:
    """Return the duties, each to be called every ``every`` seconds in the current event loop.

    Workers share them. A router does all of them: the workers behind it have none.
    """
    if isinstance(backend, LinkBackend):
        return []  # the router at the other end of the link has these duties

    def shared(intervals: float) -> SharedInterval:
        return SharedInterval(intervals * every, clock, worker_count)

    roles = backend.open()
    common: dict[str, Any] = {"clock": clock, "telemetry": telemetry}
    reaper = DeadWorkerReaper(
        roles.registry,
        roles.broker,
        roles.routes,
        **common,
        every=every,
        idle=settings.route_idle or None,
        always_watches=is_router,
    )
    worker_count = one_worker if is_router else reaper.count_workers
    pruner = Pruner(
        roles.records,
        roles.joins,
        age=settings.keep_days * _DAY_SECONDS,
        keep=settings.keep_count,
        worker_count=worker_count,
        **common,
    )
    missing_tasks = MissingTasks(
        roles.registry,
        roles.control,
        Pauses(roles.coordination),
        roles.records,
        after=settings.missing_task_days * _DAY_SECONDS,
        interval=shared(3),
        worker_count=worker_count,
        **common,
    )
    deployment_reaper = DeploymentReaper(
        Deployments(roles.coordination), interval=shared(3), telemetry=telemetry
    )
    sweeper = StoreSweeper(
        roles.broker,
        roles.joins,
        roles.coordination,
        interval=shared(1.5),
        tidy_interval=shared(6),
        telemetry=telemetry,
    )
    return [
        reaper.run_once,
        missing_tasks.run_once,
        sweeper.run_once,
        deployment_reaper.run_once,
        pruner.run_once,
    ]
