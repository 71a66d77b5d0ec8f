"""The dashboard as an ASGI application: pages, HTTP interface, live updates and login."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles

from umbel.app import Umbel
from umbel.control import Role, User
from umbel.control.audit import AuditLine
from umbel.dashboard.action_requests import ActionRequest
from umbel.dashboard.actions import ACTIONS
from umbel.dashboard.answers import (
    EXPECTED,
    Refused,
    encode,
    json_answer,
    status_of,
    stream_event,
)
from umbel.dashboard.audit_file import audit_csv
from umbel.dashboard.html_documents import HtmlDocuments
from umbel.dashboard.live import LiveViews, TooManyStreams, Update
from umbel.dashboard.login_tries import TooManyTries
from umbel.dashboard.openapi import api_path, describe
from umbel.dashboard.options import DashboardOptions
from umbel.dashboard.pages import PAGES, find_page
from umbel.dashboard.read_limit import ReadLimit, TooBusy
from umbel.dashboard.request_parts import API, address_of, read_fields, root_of
from umbel.dashboard.security import Guard, Protection, local_path
from umbel.dashboard.views import Page, View, path_pattern
from umbel.errors import UmbelError, Unavailable
from umbel.operations import Operations
from umbel.telemetry import events

_READ_SECONDS = 5.0
_MAX_BODY_BYTES = 2_000_000
_MAX_FORM_BYTES = 20_000
"""Of a login, which is read before the user is known."""
_MAX_AUDIT_LINES = 50_000
_USER_CHECK_SECONDS = 10.0
"""How often an open page checks that its user may still see it."""
_RETRY_SECONDS = "5"


def dashboard(
    app: Umbel, options: DashboardOptions | None = None, *, address: str = "MODULE:APP"
) -> Starlette:
    """Return the dashboard of an application, to serve or to mount into another one.

    Without options, users must log in. ``address`` is the application as ``umbel -A`` names it; the
    commands on the pages contain it.
    """
    return _Dashboard(app, options or DashboardOptions(login=True), address).asgi()


class _Dashboard:
    """Answers requests. It opens its connections to the store at the first one."""

    def __init__(self, app: Umbel, options: DashboardOptions, address: str) -> None:
        self._app = app
        self._options = options
        self._address = address
        self._operations: Operations | None = None
        self._guard: Guard | None = None
        self._live = LiveViews(app.clock, app.telemetry)
        self._reads = ReadLimit()
        self._documents = HtmlDocuments(app, address)

    def asgi(self) -> Starlette:
        static = StaticFiles(directory=Path(__file__).parent / "static")
        pages = [Route(path_pattern(page.path), partial(self._page, page)) for page in PAGES]
        data = [Route(path_pattern(api_path(page)), partial(self._data, page)) for page in PAGES]
        # A redirect to the path without a slash would lead from HTTPS to HTTP behind a proxy, with
        # the token of the request.
        api = Router(
            [
                Route("/openapi.json", self._openapi),
                Route("/audit.csv", self._audit_csv),
                Route("/live", partial(self._stream, as_json=True)),
                *data,
                Route("/actions/{action}", self._act, methods=["POST"]),
            ],
            redirect_slashes=False,
        )
        served = Starlette(
            routes=[
                Route("/login", self._login, methods=["GET", "POST"]),
                Route("/logout", self._logout, methods=["POST"]),
                Route("/live", self._stream),
                Mount(API, api),
                Mount("/static", static),
                *pages,
            ],
            middleware=[Middleware(Protection, options=self._options, answer_error=self._error)],
            exception_handlers=dict.fromkeys(EXPECTED, self._error),
            lifespan=self._lifespan,
        )
        served.router.redirect_slashes = False
        return served

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self._live.close()
            if self._operations is not None:
                await self._operations.close()

    # --- pages and data ----------------------------------------------------------------------

    async def _page(self, page: Page, request: Request) -> Response:
        user, data = await self._read_for_user(page, request)
        return await self._html(request, f"{page.name}.html", user, page=page, data=data)

    async def _data(self, page: Page, request: Request) -> Response:
        return json_answer((await self._read_for_user(page, request))[1])

    async def _read_for_user(self, page: Page, request: Request) -> tuple[User, dict[str, Any]]:
        async with self._reads.read(), _time_limit():
            user = await self._user_for(page.role, request)
            return user, await self._read(page, user, request.path_params, request.query_params)

    async def _read(
        self, page: Page, user: User, path: Mapping[str, str], query: Mapping[str, str]
    ) -> dict[str, Any]:
        view = View(
            app=self._app,
            operations=self._open(),
            user=user,
            mask=self._options.mask,
            query=dict(query),
            path=dict(path),
            address=self._address,
        )
        async with _time_limit():
            return await page.read(view)

    async def _stream(self, request: Request, *, as_json: bool = False) -> Response:
        """Send a page whenever it changes, or its data, as server-sent events."""
        page, path, query = find_page(request.query_params.get("view", ""))
        user = await self._user_for(page.role, request)
        root = root_of(request)

        async def render() -> str:
            async with self._reads.read(None):
                data = await self._read(page, user, path, query)
            return (
                encode(data).decode()
                if as_json
                else self._documents.fragment(page, user, data, root)
            )

        # What an update contains depends on the role, so all users of a role share it.
        parts = (*sorted(path.items()), *sorted(query.items()))
        key = (page.name, *parts, user.role, root, as_json)
        updates = self._live.follow(key, user.name, render, page.seconds)
        try:
            first = await anext(updates)
        except TooManyStreams:
            raise Refused(503, "Too many pages are open; this one is updated less often.") from None
        sent = self._events(first, updates, request, user, as_json)
        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(sent, media_type="text/event-stream", headers=headers)

    async def _events(
        self,
        first: Update | None,
        updates: AsyncGenerator[Update | None],
        request: Request,
        user: User,
        as_json: bool,
    ) -> AsyncIterator[bytes]:
        guard, clock = self._guarded(), self._app.clock
        checked = clock.monotonic()
        async with aclosing(updates):
            yield stream_event(first, clock.now(), as_json)
            async for update in updates:
                if clock.monotonic() - checked > _USER_CHECK_SECONDS:
                    with suppress(Unavailable):  # the update says so
                        async with _time_limit():
                            found = await guard.find_user(request)
                        if found is None or found.role != user.role:
                            return  # the session has ended, or the user was removed or changed
                        checked = clock.monotonic()
                yield stream_event(update, clock.now(), as_json)

    # --- actions -----------------------------------------------------------------------------

    async def _act(self, request: Request) -> Response:
        action = ACTIONS.get(request.path_params["action"])
        if action is None:
            raise Refused(404, f"There is no such action; {API}/openapi.json lists them.")
        user = await self._user_for(action.role, request)
        fields = await read_fields(request, _MAX_BODY_BYTES)
        guard, operations = self._guarded(), self._open()
        token = request.headers.get("x-csrf") or fields.pop("csrf", "")
        await self._check_origin(request, token)
        asked = ActionRequest(app=self._app, operations=operations, user=user, fields=fields)
        line = operations.audit.recorded(
            user=user.name,
            address=guard.address(request),
            action=action.name,
            subject=action.subject_of(fields),
            reason=fields.get("reason", ""),
        )
        async with line as outcome:
            outcome.text = await action.act(asked)
        operations.reread()
        self._live.refresh()
        return json_answer({"done": outcome.text, **asked.answer})

    async def _audit_csv(self, request: Request) -> Response:
        await self._user_for("admin", request)
        lines: list[AuditLine] = []
        after = ""
        while len(lines) < _MAX_AUDIT_LINES:
            async with self._reads.read(), _time_limit():
                page, following = await self._open().audit.read(after, limit=1_000)
            lines += page
            if following is None:
                break
            after = following
        headers = {"content-disposition": 'attachment; filename="umbel-audit.csv"'}
        return Response(audit_csv(lines), media_type="text/csv", headers=headers)

    async def _openapi(self, request: Request) -> Response:
        await self._user_for("viewer", request)
        from umbel import __version__

        root = root_of(request).removesuffix(API)
        return json_answer(describe(PAGES, ACTIONS, root, __version__))

    # --- users -------------------------------------------------------------------------------

    async def _user_for(self, role: Role, request: Request) -> User:
        """Return the user of a request. Raises Refused if a login or another role is needed."""
        async with _time_limit():
            user = await self._guarded().find_user(request)
        if user is None:
            raise Refused(401, "Log in, or give an API token in the Authorization header.")
        if not user.may(role):
            raise Refused(403, f"{user.name} has the role {user.role}; this needs {role}.")
        return user

    async def _login(self, request: Request) -> Response:
        guard, root = self._guarded(), root_of(request)
        if request.method == "GET":
            following = local_path(request.query_params.get("next", ""), root)
            return await self._html(request, "login.html", None, following=following, error="")
        fields = await self._form(request)
        following = local_path(fields.get("next", ""), root)
        name = fields.get("name", "")
        try:
            async with _time_limit():
                secret = await guard.log_in(request, name, fields.get("password", ""))
        except TooManyTries:
            raise Refused(429, "Too many logins; wait a minute.") from None
        if secret is None:
            error = "The name or the password is wrong."
            await self._record(request, name, "log-in", f"refused: {error}")
            return await self._html(
                request, "login.html", None, following=following, error=error, status=401
            )
        await self._record(request, name, "log-in", "done")
        response = RedirectResponse(following, 303)
        guard.set_cookie(response, secret, root)
        return response

    async def _logout(self, request: Request) -> Response:
        guard, root = self._guarded(), root_of(request)
        await self._form(request)
        async with _time_limit():
            user = await guard.find_user(request)
            if user is not None and (secret := request.cookies.get(guard.cookie)):
                await self._open().access.log_out(secret)
                await self._record(request, user.name, "log-out", "done")
        response = RedirectResponse(f"{root}/login", 303)
        guard.set_cookie(response, "", root)
        return response

    async def _form(self, request: Request) -> dict[str, str]:
        """Return the fields of a form of this dashboard. Raises Refused."""
        fields = await read_fields(request, _MAX_FORM_BYTES)
        await self._check_origin(request, fields.get("csrf", ""))
        return fields

    async def _check_origin(self, request: Request, token: str) -> None:
        """Raise Refused unless a change was made on a page of this dashboard."""
        async with _time_limit():
            why = await self._guarded().refusal(request, token)
        if why is not None:
            raise Refused(403, why)

    async def _record(self, request: Request, user: str, action: str, outcome: str) -> None:
        address = self._guarded().address(request)
        async with _time_limit():
            await self._open().audit.write(
                user=user[:64], address=address, action=action, outcome=outcome
            )

    # --- answers -----------------------------------------------------------------------------

    async def _error(self, request: Request, error: Exception) -> Response:
        status, text = status_of(error), str(getattr(error, "detail", "") or error)
        if not isinstance(error, EXPECTED):
            what = f"{type(error).__name__}: {error}"
            failed = events.ServiceFailed(service="dashboard", error=what, delay=0.0)
            self._app.telemetry.emit(failed)
            text = "The dashboard failed; its log says why."
        response = await self._error_page(request, status, text, is_busy=isinstance(error, TooBusy))
        response.headers.update(getattr(error, "headers", None) or {})
        if status == 503:
            response.headers["retry-after"] = _RETRY_SECONDS
        return response

    async def _error_page(
        self, request: Request, status: int, text: str, *, is_busy: bool
    ) -> Response:
        root = root_of(request)
        path = request.scope["path"].removeprefix(root)
        wants_page = "text/html" in request.headers.get("accept", "")
        if path.startswith((API, "/live", "/static")) or not wants_page:
            return JSONResponse({"error": text}, status)
        if status == 401:
            return RedirectResponse(f"{root}/login?next={quote(address_of(request))}", 303)
        may_be_pruned = status == 404 and path.startswith(("/jobs/", "/graphs/"))
        values = {"text": text, "code": status, "is_busy": is_busy, "may_be_pruned": may_be_pruned}
        return await self._html(request, "error.html", None, status=status, **values)

    async def _html(
        self,
        request: Request,
        template: str,
        user: User | None,
        *,
        status: int = 200,
        **values: Any,
    ) -> Response:
        has_form = user is not None or template == "login.html"
        async with _time_limit():
            token = await self._guarded().form_token(request) if has_form else ""
        document = self._documents.document(request, template, user, token, **values)
        return HTMLResponse(document, status)

    # --- parts -------------------------------------------------------------------------------

    def _open(self) -> Operations:
        if self._operations is None:
            self._operations = self._app.operations()
            self._operations.reuse_reads()
        return self._operations

    def _guarded(self) -> Guard:
        if self._guard is None:
            self._guard = Guard(self._options, self._open().access, self._app.clock)
        return self._guard


@asynccontextmanager
async def _time_limit() -> AsyncIterator[None]:
    """Run a block that uses the store. Raises Unavailable if it takes too long."""
    try:
        async with asyncio.timeout(_READ_SECONDS):
            yield
    except TimeoutError as error:
        if isinstance(error, UmbelError):
            raise
        text = f"The store is slow: it did not answer within {_READ_SECONDS:g} s."
        raise Unavailable(text) from None
