"""What the page of buried jobs shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from umbel.backends import JobFilter
from umbel.dashboard.action_requests import MAX_BULK_JOBS
from umbel.dashboard.views import Page, View
from umbel.messages import State
from umbel.operations import BuriedGroup, JobSearch, group_buried

_BURIED_WINDOW = 3_000


async def read_buried(view: View) -> dict[str, Any]:
    """Return the newest buried jobs, grouped by task and error."""
    wanted = JobFilter(states=(State.BURIED,), limit=_BURIED_WINDOW)
    search = JobSearch(wanted=wanted, window=_BURIED_WINDOW, with_values=False)
    found = await view.operations.search(search)
    return {
        "groups": group_documents(group_buried(found.jobs), view),
        "read": len(found.jobs),
        "is_more": found.after is not None,
        "max_jobs": MAX_BULK_JOBS,
    }


def group_documents(groups: Iterable[BuriedGroup], view: View) -> list[dict[str, Any]]:
    hide = view.visibility.error
    return [msgspec.to_builtins(group) | {"error": hide(group.error)} for group in groups]


BURIED_PAGE = Page(name="buried", path="/buried", title="Buried jobs", read=read_buried, seconds=5)
