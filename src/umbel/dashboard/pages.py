"""All pages, in the order of the navigation. The HTTP interface returns their data as JSON."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit

from starlette.routing import compile_path

from umbel.dashboard.answers import Refused
from umbel.dashboard.buried_page import BURIED_PAGE
from umbel.dashboard.deployment_page import DEPLOYMENT_PAGE
from umbel.dashboard.gate_pages import GATE_PAGES
from umbel.dashboard.graph_pages import GRAPH_PAGES
from umbel.dashboard.job_pages import JOB_PAGES
from umbel.dashboard.overview_page import OVERVIEW_PAGE
from umbel.dashboard.queue_pages import QUEUE_PAGES
from umbel.dashboard.saved_views import VIEW_PAGES
from umbel.dashboard.schedule_pages import SCHEDULE_PAGES
from umbel.dashboard.task_pages import TASK_PAGES
from umbel.dashboard.user_pages import USER_PAGES
from umbel.dashboard.views import Page, path_pattern
from umbel.dashboard.workflow_pages import WORKFLOW_PAGES

PAGES = (
    OVERVIEW_PAGE,
    *JOB_PAGES,
    *VIEW_PAGES,
    *GRAPH_PAGES,
    *WORKFLOW_PAGES,
    *QUEUE_PAGES,
    *TASK_PAGES,
    *SCHEDULE_PAGES,
    *GATE_PAGES,
    DEPLOYMENT_PAGE,
    BURIED_PAGE,
    *USER_PAGES,
)
NAVIGATION = [page for page in PAGES if "{" not in page.path]
_PATTERNS = [(compile_path(path_pattern(page.path))[0], page) for page in PAGES]
_MAX_URL = 4_000


def find_page(view: str) -> tuple[Page, dict[str, str], dict[str, str]]:
    """Return the page that a URL names, with the values in its path and query. Raises Refused."""
    if len(view) > _MAX_URL:
        raise Refused(400, f"view: at most {_MAX_URL:,} characters are allowed")
    if not view.startswith("/") or view.startswith("//"):
        raise Refused(404, "view: give a path of this dashboard")
    parts = urlsplit(view)
    for pattern, page in _PATTERNS:
        if (found := pattern.match(unquote(parts.path))) and page.seconds:
            return page, found.groupdict(), dict(parse_qsl(parts.query))
    raise Refused(404, "view: this page has no updates")
