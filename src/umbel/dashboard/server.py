"""The dashboard as an ASGI application: pages, HTTP interface, live updates and login."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route, compile_path
from starlette.staticfiles import StaticFiles

from umbel.app import Umbel
from umbel.control import Role, User
from umbel.control.audit import AuditLine
from umbel.dashboard.actions import ACTIONS
from umbel.dashboard.audit_file import audit_csv
from umbel.dashboard.live import LiveViews, TooManyStreams, Update
from umbel.dashboard.openapi import api_path, describe
from umbel.dashboard.options import DashboardOptions
from umbel.dashboard.readers import PAGES
from umbel.dashboard.rendering import make_environment
from umbel.dashboard.requests import Request as ActionRequest
from umbel.dashboard.security import Guard, HostCheck, TooManyTries, local_path
from umbel.dashboard.views import Page, View
from umbel.errors import (
    BadArguments,
    DeploymentUnderWay,
    NotAllowed,
    UmbelError,
    Unavailable,
)
from umbel.operations import Operations

API = "/api/v1"
_READ_SECONDS = 5.0
_MAX_BODY_BYTES = 2_000_000
_MAX_URL = 4_000
_MAX_AUDIT_LINES = 50_000
_USER_CHECK_SECONDS = 10.0
"""How often an open page checks that its user may still see it."""
_PATTERNS = [(compile_path(page.path)[0], page) for page in PAGES]
_NAVIGATION = [page for page in PAGES if "{" not in page.path]
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (Unavailable, 503),
    (NotAllowed, 409),
    (DeploymentUnderWay, 409),
    (LookupError, 404),
    (ValueError, 400),
    (BadArguments, 400),
)


class _Refused(Exception):
    """A request that may not be made."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


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
        self._templates = make_environment()

    def asgi(self) -> Starlette:
        static = StaticFiles(directory=Path(__file__).parent / "static")
        pages = [Route(page.path, partial(self._page, page)) for page in PAGES]
        data = [Route(api_path(page), partial(self._data, page)) for page in PAGES]
        return Starlette(
            routes=[
                Route("/login", self._login, methods=["GET", "POST"]),
                Route("/logout", self._logout, methods=["POST"]),
                Route("/live", self._stream),
                Mount(
                    API,
                    routes=[
                        Route("/openapi.json", self._openapi),
                        Route("/audit.csv", self._audit_csv),
                        Route("/live", partial(self._stream, as_json=True)),
                        *data,
                        Route("/actions/{action}", self._act, methods=["POST"]),
                    ],
                ),
                Mount("/static", static),
                *pages,
            ],
            middleware=[Middleware(HostCheck, options=self._options)],
            exception_handlers={
                UmbelError: self._error,
                _Refused: self._error,
                HTTPException: self._error,
            },
            lifespan=self._lifespan,
        )

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
        user = await self._user_for(page.role, request)
        data = await self._read(page, user, request.path_params, request.query_params)
        return self._html(request, f"{page.name}.html", user, page=page, data=data)

    async def _data(self, page: Page, request: Request) -> Response:
        user = await self._user_for(page.role, request)
        data = await self._read(page, user, request.path_params, request.query_params)
        return _json(data)

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
        try:
            async with asyncio.timeout(_READ_SECONDS):
                return await page.read(view)
        except TimeoutError as error:
            if isinstance(error, UmbelError):
                raise
            raise Unavailable(f"the store did not answer within {_READ_SECONDS:g} s") from None

    async def _stream(self, request: Request, *, as_json: bool = False) -> Response:
        """Send a page whenever it changes, or its data, as server-sent events."""
        page, path, query = _find_page(request.query_params.get("view", ""))
        user = await self._user_for(page.role, request)
        root = _root(request)

        async def render() -> str:
            data = await self._read(page, user, path, query)
            return _encode(data).decode() if as_json else self._fragment(page, user, data, root)

        # What an update contains depends on the role, so all users of a role share it.
        parts = (*sorted(path.items()), *sorted(query.items()))
        key = (page.name, *parts, user.role, root, as_json)
        updates = self._live.follow(key, user.name, render, page.seconds)
        try:
            self._live.check_room(user.name)
        except TooManyStreams:
            raise _Refused(
                503, "Too many pages are open; this one is updated less often."
            ) from None
        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(
            self._events(updates, request, as_json), media_type="text/event-stream", headers=headers
        )

    async def _events(
        self, updates: AsyncIterator[Update | None], request: Request, as_json: bool
    ) -> AsyncIterator[bytes]:
        guard, clock = self._guarded(), self._app.clock
        checked = clock.monotonic()
        async for update in updates:
            if clock.monotonic() - checked > _USER_CHECK_SECONDS:
                with suppress(Unavailable):  # the update says so
                    if await guard.find_user(request) is None:
                        return  # the session has ended, or its user was removed
                    checked = clock.monotonic()
            document: dict[str, Any] = {"now": self._app.clock.now()}
            if update is not None:
                content = {"data": msgspec.Raw(update.content.encode() or b"null")}
                document |= content if as_json else {"html": update.content}
                document |= {"error": update.error, "since": update.since}
            yield b"data: " + msgspec.json.encode(document) + b"\n\n"

    # --- actions -----------------------------------------------------------------------------

    async def _act(self, request: Request) -> Response:
        action = ACTIONS.get(request.path_params["action"])
        if action is None:
            raise _Refused(404, f"There is no such action; {API}/openapi.json lists them.")
        fields = await _fields(request)
        user = await self._user_for(action.role, request)
        token = request.headers.get("x-csrf") or fields.pop("csrf", "")
        if (why := self._guarded().refusal(request, token)) is not None:
            raise _Refused(403, why)
        operations = self._open()
        asked = ActionRequest(app=self._app, operations=operations, user=user, fields=fields)
        outcome = "failed"
        try:
            outcome = await action.act(asked)
        except UmbelError as error:
            outcome = f"refused: {error}"
            raise
        finally:
            await operations.audit.write(
                user=user.name,
                address=request.client.host if request.client else "",
                action=action.name,
                subject=fields.get(action.subject, ""),
                reason=fields.get("reason", ""),
                outcome=outcome,
            )
        operations.reread()
        self._live.refresh()
        return _json({"done": outcome})

    async def _audit_csv(self, request: Request) -> Response:
        await self._user_for("admin", request)
        lines: list[AuditLine] = []
        after = ""
        while len(lines) < _MAX_AUDIT_LINES:
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

        root = _root(request).removesuffix(API)
        return _json(describe(PAGES, ACTIONS, root, __version__))

    # --- users -------------------------------------------------------------------------------

    async def _user_for(self, role: Role, request: Request) -> User:
        """Return the user of a request. Raises _Refused if a login or another role is needed."""
        user = await self._guarded().find_user(request)
        if user is None:
            raise _Refused(401, "Log in, or give an API token in the Authorization header.")
        if not user.may(role):
            raise _Refused(403, f"{user.name} has the role {user.role}; this needs {role}.")
        return user

    async def _login(self, request: Request) -> Response:
        guard, root = self._guarded(), _root(request)
        if request.method == "GET":
            following = local_path(request.query_params.get("next", ""), root)
            return self._html(request, "login.html", None, following=following, error="")
        fields = await _fields(request)
        if (why := guard.refusal(request, fields.get("csrf", ""))) is not None:
            raise _Refused(403, why)
        following = local_path(fields.get("next", ""), root)
        name = fields.get("name", "")
        try:
            secret = await guard.log_in(request, name, fields.get("password", ""))
        except TooManyTries:
            raise _Refused(429, "Too many logins; wait a minute.") from None
        if secret is None:
            error = "The name or the password is wrong."
            return self._html(
                request, "login.html", None, following=following, error=error, status=401
            )
        response = RedirectResponse(following, 303)
        guard.set_cookie(response, secret, root)
        return response

    async def _logout(self, request: Request) -> Response:
        guard, fields = self._guarded(), await _fields(request)
        if (why := guard.refusal(request, fields.get("csrf", ""))) is not None:
            raise _Refused(403, why)
        if secret := request.cookies.get(guard.cookie):
            await self._open().access.log_out(secret)
        response = RedirectResponse(f"{_root(request)}/login", 303)
        response.delete_cookie(guard.cookie)
        return response

    # --- answers -----------------------------------------------------------------------------

    async def _error(self, request: Request, error: Exception) -> Response:
        status = getattr(error, "status", None) or getattr(error, "status_code", None)
        if status is None:
            status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
        text = str(getattr(error, "detail", "") or error)
        path = request.url.path.removeprefix(_root(request))
        wants_page = "text/html" in request.headers.get("accept", "")
        if path.startswith((API, "/live", "/static")) or not wants_page:
            return JSONResponse({"error": text}, status)
        root = _root(request)
        if status == 401:
            here = quote(request.url.path + (f"?{request.url.query}" if request.url.query else ""))
            return RedirectResponse(f"{root}/login?next={here}", 303)
        return self._html(request, "error.html", None, text=text, code=status, status=status)

    def _html(
        self,
        request: Request,
        template: str,
        user: User | None,
        *,
        status: int = 200,
        **values: Any,
    ) -> Response:
        root, token = _root(request), self._guarded().csrf_token(request)
        page = values.get("page")
        content = ""
        if page is not None and user is not None:
            content = self._fragment(page, user, values["data"], root)
        elif page is None:
            content = self._templates.get_template(template).render(
                root=root, csrf=token, user=user, **values
            )
        document = self._templates.get_template("base.html").render(
            root=root,
            csrf=token,
            user=user,
            page=page,
            content=content,
            navigation=[one for one in _NAVIGATION if user is not None and user.may(one.role)],
            namespace=self._app.settings.namespace,
            store=self._app.settings.public()["broker"],
            now=self._app.clock.now(),
            path=request.url.path.removeprefix(root)
            + (f"?{request.url.query}" if request.url.query else ""),
        )
        return HTMLResponse(document, status)

    def _fragment(self, page: Page, user: User, data: Mapping[str, Any], root: str) -> str:
        template = self._templates.get_template(f"{page.name}.html")
        return template.render(data, root=root, user=user, page=page, address=self._address)

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


def _root(request: Request) -> str:
    """Return the path under which the dashboard is mounted."""
    root = str(request.scope.get("root_path", ""))
    return root.removesuffix(API).rstrip("/")


def _json(document: Any) -> Response:
    return Response(_encode(document), media_type="application/json")


def _encode(document: Any) -> bytes:
    return msgspec.json.encode(document, enc_hook=repr)


def _find_page(view: str) -> tuple[Page, dict[str, str], dict[str, str]]:
    """Return the page that a URL names, with the values in its path and query. Raises _Refused."""
    parts = urlsplit(view[:_MAX_URL])
    if parts.scheme or parts.netloc:
        raise _Refused(404, "view: give a path of this dashboard")
    for pattern, page in _PATTERNS:
        if (found := pattern.match(unquote(parts.path))) and page.seconds:
            return page, found.groupdict(), dict(parse_qsl(parts.query))
    raise _Refused(404, "view: this page has no updates")


async def _fields(request: Request) -> dict[str, str]:
    """Return the fields of a form or of a JSON object. Raises _Refused."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            raise _Refused(413, f"At most {_MAX_BODY_BYTES:,} bytes are accepted.")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == "application/json":
            found = msgspec.json.decode(bytes(body) or b"{}", type=dict[str, str | int | float])
            return {name: str(value) for name, value in found.items()}
        if kind == "application/x-www-form-urlencoded":
            return dict(
                parse_qsl(
                    body.decode(), keep_blank_values=True, max_num_fields=100, errors="strict"
                )
            )
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise _Refused(400, f"The request cannot be read: {error}") from None
    raise _Refused(415, "Send a JSON object whose values are texts or numbers.")
