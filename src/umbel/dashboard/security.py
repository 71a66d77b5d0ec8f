"""Who makes a request, and whether it may: Host, Origin, login, tokens, CSRF, and headers."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections import deque
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from umbel.clock import Clock
from umbel.control import Access, User
from umbel.dashboard.options import DashboardOptions

_LOGIN_TRIES = 5
_LOGIN_SECONDS = 60.0
_MAX_TRIED = 10_000
"""How many pairs of user and address are remembered."""

_PROXY_HEADERS = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
}


class HostCheck:
    """Refuses requests for another host, as a DNS rebinding attack makes them; adds headers."""

    def __init__(self, app: ASGIApp, options: DashboardOptions) -> None:
        self._app = app
        self._hosts = options.accepted_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        host = Headers(scope=scope).get("host", "")
        if _host_name(host) not in self._hosts:
            text = f"Host {host!r:.100} is not accepted; start the dashboard with --host-name NAME"
            await JSONResponse({"error": text}, 421)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)


def _host_name(host: str) -> str:
    """Return the name in a Host header, without its port, in lower case."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


class Guard:
    """Finds the user of a request, and refuses changes that another site has caused."""

    def __init__(self, options: DashboardOptions, access: Access, clock: Clock) -> None:
        self._options = options
        self._access = access
        self._key = secrets.token_bytes(32)
        self._tries = LoginTries(clock)
        self.cookie = _cookie_name(options)

    async def find_user(self, request: Request) -> User | None:
        """Return who makes a request; None if a login is needed."""
        header = request.headers.get("authorization", "")
        if header:
            scheme, _, secret = header.partition(" ")
            if scheme.lower() != "bearer":
                return None
            return await self._access.user_of_token(secret.strip())
        if (user := await self._proxy_user(request)) is not None:
            return user
        if cookie := request.cookies.get(self.cookie):
            user = await self._access.user_of_session(cookie)
            if user is not None:
                return user
        if self._options.is_open and _is_local(request):
            return User(name="local", role="admin", is_local=True)
        return None

    async def _proxy_user(self, request: Request) -> User | None:
        """Return the user that a trusted proxy names. Unknown users are viewers."""
        options = self._options
        address = request.client.host if request.client else ""
        if not options.proxy_header or address not in options.proxies:
            return None
        name = request.headers.get(options.proxy_header, "").strip()
        if not name:
            return None
        known = {user.name: user for user in await self._access.users()}
        return known.get(name) or User(name=name[:64], role="viewer")

    def csrf_token(self, request: Request) -> str:
        """Return the token that forms of this user must contain."""
        owner = request.cookies.get(self.cookie, "") or "local"
        return hmac.new(self._key, owner.encode(), hashlib.sha256).hexdigest()

    def refusal(self, request: Request, token: str) -> str | None:
        """Return why a change is refused; None if it was made on a page of this dashboard."""
        if request.headers.get("authorization"):
            return None  # a browser does not add it by itself
        site = request.headers.get("sec-fetch-site", "")
        if site and site not in ("same-origin", "none"):
            return "Sec-Fetch-Site: the request comes from another site"
        origin = request.headers.get("origin", "")
        if origin and origin != "null" and urlsplit(origin).netloc != request.headers.get("host"):
            return "Origin: the request comes from another site"
        if origin == "null" or not (site or origin):
            return "Origin: it is missing; use an API token for programs"
        if not hmac.compare_digest(token.encode(), self.csrf_token(request).encode()):
            return "csrf: the page is out of date; reload it and try again"
        return None

    # --- login -------------------------------------------------------------------------------

    async def log_in(self, request: Request, name: str, password: str) -> str | None:
        """Return the secret of a new session; None if name or password is wrong.

        Raises:
            TooManyTries: there were too many attempts in a minute.
        """
        address = request.client.host if request.client else ""
        self._tries.count(name[:64], address)
        return await self._access.log_in(name, password)

    def set_cookie(self, response: Response, secret: str, root: str) -> None:
        """Store a session in the browser."""
        response.set_cookie(
            self.cookie,
            secret,
            httponly=True,
            samesite="lax",
            secure=self._options.is_https,
            path="/" if self.cookie.startswith("__Host-") else (root or "/"),
            max_age=12 * 3600,
        )


class TooManyTries(Exception):
    """There were too many logins of one user or from one address."""


class LoginTries:
    """Counts logins of each user and address in the last minute, whether they succeed or not."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._times: dict[str, deque[float]] = {}

    def count(self, name: str, address: str) -> None:
        """Count one login. Raises TooManyTries."""
        now = self._clock.monotonic()
        if len(self._times) > _MAX_TRIED:
            self._times = {k: t for k, t in self._times.items() if t[-1] > now - _LOGIN_SECONDS}
        if len(self._times) > _MAX_TRIED:
            raise TooManyTries
        # Both are counted: one address tries many users, and many addresses try one user.
        for key, most in ((f"user {name}", _LOGIN_TRIES), (f"from {address}", 4 * _LOGIN_TRIES)):
            times = self._times.setdefault(key, deque())
            while times and times[0] <= now - _LOGIN_SECONDS:
                times.popleft()
            if len(times) >= most:
                raise TooManyTries
            times.append(now)


def _cookie_name(options: DashboardOptions) -> str:
    if not options.is_https:
        return "umbel-session"
    return "__Secure-umbel-session" if options.prefix else "__Host-umbel-session"


def _is_local(request: Request) -> bool:
    """Return whether the connection comes from this machine, and not through a proxy."""
    if request.client is None or any(name in request.headers for name in _PROXY_HEADERS):
        return False
    try:
        return ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def local_path(text: str, root: str) -> str:
    """Return a path of this dashboard; its first page if the text leads elsewhere."""
    parts = urlsplit(text)
    is_local = not parts.scheme and not parts.netloc and text.startswith("/")
    if is_local and not text.startswith("//") and "\\" not in text and text.isprintable():
        return text
    return f"{root}/"
