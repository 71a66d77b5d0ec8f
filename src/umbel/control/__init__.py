"""Owns what operators request of a cluster: pauses, deployments, limits; elections; users, audit.

Called by: workers and routers, which respect the requests, and operations, which makes them.
Never: knows a server; everything here is entries in ``backends.Coordination``.
"""

from umbel.control.access import ROLES, Access, Role, Token, User
from umbel.control.audit import AuditLine, AuditLog
from umbel.control.deployments import (
    DEPLOY,
    Deployment,
    DeploymentPlan,
    Deployments,
)
from umbel.control.elections import Election
from umbel.control.limits import LimitOverrides
from umbel.control.pauses import MISSING, NO_WORKER, Pause, Pauses, PauseState, Resumed, Scope
from umbel.control.saved_views import SavedViews

__all__ = [
    "DEPLOY",
    "MISSING",
    "NO_WORKER",
    "ROLES",
    "Access",
    "AuditLine",
    "AuditLog",
    "Deployment",
    "DeploymentPlan",
    "Deployments",
    "Election",
    "LimitOverrides",
    "Pause",
    "PauseState",
    "Pauses",
    "Resumed",
    "Role",
    "SavedViews",
    "Scope",
    "Token",
    "User",
]
