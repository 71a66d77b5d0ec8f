"""Each operation that changes something is recorded, and no operation is forgotten."""

from __future__ import annotations

from inspect import iscoroutinefunction, signature
from typing import Any

import pytest

from umbel.control import Access, SavedViews
from umbel.operations import GraphOperations, Operations
from umbel.operations.deployments import DeploymentOperations
from umbel.operations.recording import CHANGES
from umbel.operations.schedules import ScheduleOperations

PARTS: dict[str, type] = {
    "": Operations,
    "graphs.": GraphOperations,
    "schedules.": ScheduleOperations,
    "deploy.": DeploymentOperations,
    "access.": Access,
    "saved_views.": SavedViews,
}
READS = {
    *("charts", "jobs", "search", "job", "steps", "stored", "tasks", "queues", "missing_tasks"),
    *("hindrances", "gates", "pools", "members", "routes", "worker_indexes", "workers", "pauses"),
    *("confirmed", "health", "refuse_while_running", "close"),
    *("graphs.roots", "graphs.search", "graphs.inputs", "graphs.result", "graphs.show"),
    *("graphs.workflow_versions", "graphs.earlier_versions"),
    *("schedules.all", "schedules.show", "schedules.next_times", "schedules.history"),
    "schedules.upcoming",
    *("deploy.wait", "deploy.status", "deploy.audit"),
    *("access.users", "access.user", "access.tokens"),
    *("access.user_of_session", "access.user_of_token"),
    "saved_views.all",
}
NOT_RECORDED = {
    "erase",  # deletes the log, too
    "access.form_key",
    "access.log_in",  # the dashboard records both
    "access.log_out",
}


def operations() -> dict[str, Any]:
    """Return all operations by the name under which they are called."""
    return {
        prefix + name: method
        for prefix, part in PARTS.items()
        for name, method in vars(part).items()
        if iscoroutinefunction(method) and not name.startswith("_")
    }


def test_every_operation_is_recorded_or_known_to_change_nothing() -> None:
    assert {*operations()} == {*CHANGES} | READS | NOT_RECORDED


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_the_parameters_in_the_log_exist_and_are_not_secret(name: str) -> None:
    _, *parameters = CHANGES[name]
    assert {*parameters} <= {*signature(operations()[name]).parameters}
    assert not {*parameters} & {"password", "value", "result", "arguments", "template"}
