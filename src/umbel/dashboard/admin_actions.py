"""What only admins can do besides deleting jobs: change users."""

from __future__ import annotations

from umbel.control import ROLES
from umbel.dashboard.action_requests import Action, ActionRequest
from umbel.errors import ConfigurationError, NotAllowed


async def _set_user(request: ActionRequest) -> str:
    name, role = request.get("name"), request.get("role")
    if role not in ROLES:
        raise ConfigurationError(f"role={role!r:.40}: give one of {', '.join(ROLES)}")
    password, keep_admin = request.get("password"), not request.user.is_local
    await request.operations.access.set_user(name, role, password, keep_admin=keep_admin)
    return f"{name} is a user with the role {role}."


async def _remove_user(request: ActionRequest) -> str:
    name, keep_admin = request.get("name"), not request.user.is_local
    if not await request.operations.access.remove_user(name, keep_admin=keep_admin):
        raise NotAllowed("There is no such user.")
    return "The user was removed and is logged out."


ADMIN_ACTIONS = (
    Action(
        name="set-user",
        summary="Add a user, or change the role and password of one.",
        act=_set_user,
        role="admin",
        fields=("name", "role", "password"),
        subject=("name", "role"),
    ),
    Action(
        name="remove-user",
        summary="Remove a user and end the user's sessions.",
        act=_remove_user,
        role="admin",
        fields=("name",),
        subject=("name",),
    ),
)
"""The actions on users."""
