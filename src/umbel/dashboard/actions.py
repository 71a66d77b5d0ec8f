"""All that users can do on the dashboard and over HTTP: one table, which also has the roles."""

from __future__ import annotations

from umbel.dashboard.action_requests import Action
from umbel.dashboard.admin_actions import ADMIN_ACTIONS
from umbel.dashboard.bulk_actions import BULK_ACTIONS
from umbel.dashboard.deployment_actions import DEPLOYMENT_ACTIONS
from umbel.dashboard.gate_actions import GATE_ACTIONS
from umbel.dashboard.graph_actions import GRAPH_ACTIONS
from umbel.dashboard.job_actions import JOB_ACTIONS
from umbel.dashboard.queue_actions import QUEUE_ACTIONS
from umbel.dashboard.route_actions import ROUTE_ACTIONS
from umbel.dashboard.saved_views import VIEW_ACTIONS
from umbel.dashboard.schedule_actions import SCHEDULE_ACTIONS

ACTIONS: dict[str, Action] = {
    action.name: action
    for action in (
        *JOB_ACTIONS,
        *BULK_ACTIONS,
        *VIEW_ACTIONS,
        *GRAPH_ACTIONS,
        *QUEUE_ACTIONS,
        *GATE_ACTIONS,
        *ROUTE_ACTIONS,
        *SCHEDULE_ACTIONS,
        *DEPLOYMENT_ACTIONS,
        *ADMIN_ACTIONS,
    )
}
"""All actions by name."""
