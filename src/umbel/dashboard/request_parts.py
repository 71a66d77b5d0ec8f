"""What a request contains: the path of the dashboard, its own address, and its fields."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote

import msgspec
from starlette.requests import Request

from umbel.dashboard.answers import Refused

API = "/api/v1"


def root_of(request: Request) -> str:
    """Return the path under which the dashboard is mounted."""
    root = str(request.scope.get("root_path", ""))
    return root.removesuffix(API).rstrip("/")


def address_of(request: Request) -> str:
    """Return the path and the query of a request, as in the address bar of a browser."""
    query = request.scope["query_string"].decode("latin-1")
    return quote(request.scope["path"]) + (f"?{query}" if query else "")


async def read_fields(request: Request, limit: int) -> dict[str, str]:
    """Return the fields of a form or of a JSON object. Raises Refused."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise Refused(413, f"At most {limit:,} bytes are accepted.")
    if not body:
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == "application/json":
            found = msgspec.json.decode(bytes(body), type=dict[str, str | int | float])
            return {name: str(value) for name, value in found.items()}
        if kind == "application/x-www-form-urlencoded":
            return dict(
                parse_qsl(
                    body.decode(), keep_blank_values=True, max_num_fields=100, errors="strict"
                )
            )
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise Refused(400, f"The request cannot be read: {error}") from None
    raise Refused(
        415,
        f"Content-Type {kind!r:.80}: send a JSON object whose values are texts or numbers, as"
        " application/json",
    )
