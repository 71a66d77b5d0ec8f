"""What the pages of users and of the audit log show."""

from __future__ import annotations

from typing import Any

import msgspec

from umbel.control import ROLES
from umbel.dashboard.views import Page, View


async def read_audit(view: View) -> dict[str, Any]:
    """Return the newest actions of users."""
    lines, after = await view.operations.audit.read(view.query.get("after", ""))
    return {"lines": [msgspec.to_builtins(line) for line in lines], "after": after}


async def read_users(view: View) -> dict[str, Any]:
    """Return users and tokens, without their secrets."""
    access = view.operations.access
    tokens = [
        {"name": token.name, "role": token.role, "left": token.left}
        for token in await access.tokens()
    ]
    return {
        "users": [{"name": user.name, "role": user.role} for user in await access.users()],
        "tokens": tokens,
        "roles": ROLES,
    }


USER_PAGES = (
    Page(
        name="audit",
        path="/audit",
        title="Audit log",
        read=read_audit,
        role="admin",
        seconds=0,
        parameters=("after",),
    ),
    Page(name="users", path="/users", title="Users", read=read_users, role="admin", seconds=0),
)
"""The pages for admins."""
