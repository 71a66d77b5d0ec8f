"""Whole pages as HTML: the frame with the navigation, and the content in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from starlette.requests import Request

from umbel.app import Umbel
from umbel.control import User
from umbel.dashboard.pages import NAVIGATION
from umbel.dashboard.rendering import make_environment
from umbel.dashboard.request_parts import address_of, root_of
from umbel.dashboard.views import Page


class HtmlDocuments:
    """Renders pages and their updates for an application."""

    def __init__(self, app: Umbel, address: str) -> None:
        self._app = app
        self._address = address
        self._templates = make_environment()

    def fragment(self, page: Page, user: User, data: Mapping[str, Any], root: str) -> str:
        """Return the content of a page, which an update replaces."""
        template = self._templates.get_template(f"{page.name}.html")
        return template.render(data, root=root, user=user, page=page, address=self._address)

    def document(
        self,
        request: Request,
        template: str,
        user: User | None,
        token: str,
        *,
        page: Page | None = None,
        data: Mapping[str, Any] | None = None,
        **values: Any,
    ) -> str:
        """Return a whole page: one with data of the store, or another template with values."""
        root = root_of(request)
        if page is not None and user is not None:
            content = self.fragment(page, user, data or {}, root)
        else:
            content = self._templates.get_template(template).render(
                root=root, csrf=token, user=user, **values
            )
        return self._templates.get_template("base.html").render(
            root=root,
            csrf=token,
            user=user,
            page=page,
            content=content,
            navigation=[one for one in NAVIGATION if user is not None and user.may(one.role)],
            namespace=self._app.settings.namespace,
            store=self._app.settings.public()["broker"],
            now=self._app.clock.now(),
            path=address_of(request).removeprefix(quote(root)),
        )
