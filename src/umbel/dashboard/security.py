"""Who makes a request, and whether it may: Host, Origin, login, tokens, CSRF, and headers."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from umbel.clock import Clock
from umbel.control import Access, User
from umbel.dashboard.login_tries import LoginTries
from umbel.dashboard.options import DashboardOptions, plain_address

_MAX_PROXIES = 20

_PROXY_HEADERS = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    # With no-referrer, browsers would send "Origin: null" with the form of the login.
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
}


AnswerError = Callable[[Request, Exception], Awaitable[Response]]


class Protection:
    """Adds headers to all answers, refuses other hosts, and answers requests that fail.

    A request for another host is what a DNS rebinding attack makes.
    """

    def __init__(self, app: ASGIApp, options: DashboardOptions, answer_error: AnswerError) -> None:
        self._app = app
        self._hosts = options.accepted_hosts
        self._answer_error = answer_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        host = Headers(scope=scope).get("host", "")
        if _host_name(host) not in self._hosts:
            text = f"Host {host!r:.100} is not accepted; start the dashboard with --host-name NAME"
            await JSONResponse({"error": text}, 421)(scope, receive, send_with_headers)
            return
        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            if has_started:
                raise
            answer = await self._answer_error(Request(scope, receive), error)
            await answer(scope, receive, send_with_headers)


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
        self._key = b""
        self._tries = LoginTries(clock)
        self.cookie = _cookie_name(options)

    async def find_user(self, request: Request) -> User | None:
        """Return who makes a request; None if a login is needed."""
        # A proxy may pass the password on with which it let a user in: Basic says nothing here.
        if (token := _bearer_token(request)) is not None:
            return await self._access.user_of_token(token)
        if name := self._proxy_user(request):
            return await self._access.user(name) or User(name=name[:64], role="viewer")
        if cookie := request.cookies.get(self.cookie):
            user = await self._access.user_of_session(cookie)
            if user is not None:
                return user
        return _LOCAL if self._is_open_to(request) else None

    def _proxy_user(self, request: Request) -> str:
        """Return the name of the user that a trusted proxy names; an empty text if none does."""
        options = self._options
        if not options.proxy_header or not options.trusts(_peer(request)):
            return ""
        return request.headers.get(options.proxy_header, "").strip()

    def _is_open_to(self, request: Request) -> bool:
        return self._options.is_open and _is_local(request)

    def address(self, request: Request) -> str:
        """Return the address of the client, which a trusted proxy names in X-Forwarded-For."""
        address, options = _peer(request), self._options
        if not options.trusts(address):
            return address
        named = ",".join(request.headers.getlist("x-forwarded-for")).split(",")
        for text in reversed(named[-_MAX_PROXIES:]):
            found = plain_address(text.strip())
            if not _is_address(found):
                break
            if not options.trusts(found):
                return found
        return address

    # --- forms -------------------------------------------------------------------------------

    async def form_token(self, request: Request) -> str:
        """Return the token that forms of this user must contain.

        It is the same in all processes that use the store, also after a restart.
        """
        if not self._key:
            self._key = await self._access.form_key()
        owner = self._owner(request).encode(errors="surrogatepass")
        return hmac.new(self._key, owner, hashlib.sha256).hexdigest()

    def _owner(self, request: Request) -> str:
        """Return what the login of a request is: tokens of one owner are of no use to others."""
        if name := self._proxy_user(request):
            return f"user {name}"
        if cookie := request.cookies.get(self.cookie):
            return f"session {cookie}"
        return "local" if self._is_open_to(request) else "nobody"

    async def refusal(self, request: Request, token: str) -> str | None:
        """Return why a change is refused; None if it was made on a page of this dashboard."""
        if _bearer_token(request) is not None:
            return None  # a browser does not add it by itself
        site = request.headers.get("sec-fetch-site", "")
        if site and site not in ("same-origin", "none"):
            return "Sec-Fetch-Site: the request comes from another site"
        origin = request.headers.get("origin", "")
        if origin == "null" or not (site or origin):
            return "Origin: it is missing; use an API token for programs"
        if origin and not self._is_own(origin, request.headers.get("host", "")):
            return (
                f"Origin: the request comes from another site, {origin!r:.100}. If a proxy serves"
                " the dashboard under this name, start it with --host-name NAME"
            )
        expected = await self.form_token(request)
        if not hmac.compare_digest(token.encode(errors="replace"), expected.encode()):
            return "csrf: the page is out of date; reload it and try again"
        return None

    def _is_own(self, origin: str, host: str) -> bool:
        """Return whether an origin is this dashboard, also if a proxy has changed the Host."""
        try:
            parts = urlsplit(origin)
            return parts.netloc == host or parts.hostname in self._options.own_names
        except ValueError:
            return False

    # --- login -------------------------------------------------------------------------------

    async def log_in(self, request: Request, name: str, password: str) -> str | None:
        """Return the secret of a new session; None if name or password is wrong.

        Raises:
            TooManyTries: there were too many attempts in a minute.
        """
        self._tries.count(name[:64], self.address(request))
        return await self._access.log_in(name, password)

    def set_cookie(self, response: Response, secret: str, root: str) -> None:
        """Store a session in the browser. An empty secret deletes the one that is there."""
        response.set_cookie(
            self.cookie,
            secret,
            httponly=True,
            samesite="lax",
            secure=self._options.is_https,
            path="/" if self.cookie.startswith("__Host-") else (root or "/"),
            max_age=12 * 3600 if secret else 0,
        )


def _cookie_name(options: DashboardOptions) -> str:
    if not options.is_https:
        return "umbel-session"
    return "__Secure-umbel-session" if options.prefix else "__Host-umbel-session"


_LOCAL = User(name="local", role="admin", is_local=True)


def _peer(request: Request) -> str:
    """Return the address of the other end of the connection: a client, or a proxy."""
    return plain_address(request.client.host) if request.client else ""


def _bearer_token(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _is_local(request: Request) -> bool:
    """Return whether the connection comes from this machine, and not through a proxy."""
    if request.client is None or any(name in request.headers for name in _PROXY_HEADERS):
        return False
    peer = _peer(request)
    return _is_address(peer) and ipaddress.ip_address(peer).is_loopback


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def local_path(text: str, root: str) -> str:
    """Return a path of this dashboard; its first page if the text leads elsewhere."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return f"{root}/"
    is_local = not parts.scheme and not parts.netloc and text.startswith("/")
    if is_local and not text.startswith("//") and "\\" not in text and text.isprintable():
        return text
    return f"{root}/"
