"""What users can do with deployments: end one, or take over one whose command no longer runs."""

from __future__ import annotations

import os
import socket

from umbel.control import Deployment, DeploymentPlan
from umbel.dashboard.action_requests import Action, ActionRequest, check_typed
from umbel.errors import DeploymentLost, NotAllowed
from umbel.messages import fresh_id
from umbel.operations.deployments import DEPLOYMENT_LEASE_SECONDS

_SILENT_SECONDS = 5.0
"""A command that runs renews its deployment every second."""
_CHECK_SECONDS = 1.0
_LIMIT_SECONDS = 600
_MAX_LIMIT_SECONDS = 3_600


def has_no_command(deployment: Deployment | None) -> bool:
    """Return whether a deployment is in progress and its command no longer runs.

    After "go", the command has ended. Before, it renews the deployment.
    """
    if deployment is None or not deployment.is_under_way:
        return False
    return deployment.left is None or deployment.left < DEPLOYMENT_LEASE_SECONDS - _SILENT_SECONDS


async def _end(request: ActionRequest) -> str:
    ended = await request.operations.deploy.end(request.user.name, force=True)
    if ended is None:
        raise NotAllowed("No deployment is in progress.")
    return "The deployment has ended; workers fetch jobs again."


async def _take_over(request: ActionRequest) -> str:
    """Do what ``umbel deploy begin --force`` does: this request is the command that waits.

    If the dashboard stops meanwhile, the deployment lapses, as when the command is killed.
    """
    deploy, seen = request.operations.deploy, request.get("deployment")
    limit = request.number("limit", 1, _MAX_LIMIT_SECONDS) if request.optional("limit") else None
    found = (await deploy.status()).deployment
    if found is None or not found.is_under_way or found.id != seen:
        raise NotAllowed("This deployment is no longer in progress. Reload the page.")
    check_typed(request, found.who)
    if not has_no_command(found):
        raise NotAllowed(
            f"The command of {found.who} (process {found.pid} on {found.host}) still runs;"
            " stop it there, or end the deployment"
        )
    plan = DeploymentPlan(
        id=fresh_id(),
        who=request.user.name,
        host=socket.gethostname(),
        pid=os.getpid(),
        reason=request.optional("reason") or found.reason,
        workers=found.workers,
        queues=found.queues,
    )
    begun = await deploy.begin(plan, force=True)
    seconds = limit or _LIMIT_SECONDS
    try:
        view = await deploy.wait(
            begun, interval=_CHECK_SECONDS, limit=seconds, show=lambda view: None
        )
    except DeploymentLost as error:
        raise NotAllowed(str(error)) from None
    if view.deployment is not None and view.deployment.state == "go":
        return f"You have taken over the deployment of {found.who}; workers can be stopped now."
    return (
        f"You have taken over the deployment of {found.who}, but it was not ready within"
        f" {seconds} s: it has ended, and workers fetch jobs again."
    )


DEPLOYMENT_ACTIONS = (
    Action(
        name="end-deployment",
        summary="End the deployment that is in progress.",
        act=_end,
        role="admin",
    ),
    Action(
        name="take-over-deployment",
        summary="Take over a deployment whose command no longer runs, and wait until workers can"
        " be stopped. If they cannot within limit seconds (600), the deployment ends.",
        act=_take_over,
        role="admin",
        fields=("deployment", "confirm"),
        optional=("reason", "limit"),
        subject=("deployment",),
    ),
)
