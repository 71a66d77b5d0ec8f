"""The saved views of a user: named filters of the list of jobs.

They have a page of their own, because all users of a role share the updates of the list of jobs.
The list loads its menu of views from there.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from umbel.dashboard.action_requests import Action, ActionRequest
from umbel.dashboard.filters import JOB_FILTERS, job_search
from umbel.dashboard.views import Page, View
from umbel.errors import NotAllowed

_FIELDS = ("state", *JOB_FILTERS)


async def read_views(view: View) -> dict[str, Any]:
    """Return the saved views of the user, by name."""
    found = await view.operations.saved_views.all(view.user.name)
    return {
        "views": [
            {"name": name, "filters": filters, "query": urlencode(filters)}
            for name, filters in sorted(found.items(), key=lambda one: one[0].casefold())
        ]
    }


async def _save(request: ActionRequest) -> str:
    name = request.get("name").strip()
    filters = {field: request.fields[field] for field in _FIELDS if request.fields.get(field)}
    job_search(filters)
    await request.operations.saved_views.save(request.user.name, name, filters)
    return f"Saved the view {name}."


async def _remove(request: ActionRequest) -> str:
    name = request.get("name").strip()
    if not await request.operations.saved_views.remove(request.user.name, name):
        raise NotAllowed("There is no such view.")
    return f"Deleted the view {name}."


VIEW_PAGES = (Page(name="views", path="/views", title="Saved views", read=read_views, seconds=0),)

VIEW_ACTIONS = (
    Action(
        name="save-view",
        summary="Save a filter of jobs under a name, for the user who does it.",
        act=_save,
        role="viewer",
        fields=("name",),
        optional=_FIELDS,
        subject=("name",),
    ),
    Action(
        name="remove-view",
        summary="Delete a saved view of the user who does it.",
        act=_remove,
        role="viewer",
        fields=("name",),
        subject=("name",),
    ),
)
