"""What the dashboard answers: JSON, events of open pages, and errors with their status."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from umbel.dashboard.live import Update
from umbel.dashboard.read_limit import TooBusy
from umbel.errors import (
    BadArguments,
    DeploymentUnderWay,
    DuplicateJob,
    NotAllowed,
    UmbelError,
    Unavailable,
)

_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (TooBusy, 503),
    (Unavailable, 503),
    (NotAllowed, 409),
    (DeploymentUnderWay, 409),
    (DuplicateJob, 409),
    (LookupError, 404),
    (ValueError, 400),
    (BadArguments, 400),
)


class Refused(Exception):
    """A request that may not be made."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


EXPECTED = (UmbelError, Refused, TooBusy, HTTPException)
"""Errors whose text is for users."""


def status_of(error: Exception) -> int:
    """Return the status of an answer to a request that has failed."""
    status = getattr(error, "status", None) or getattr(error, "status_code", None)
    if status is not None:
        return int(status)
    if not isinstance(error, EXPECTED):
        return 500
    return next((code for kind, code in _STATUS if isinstance(error, kind)), 500)


def json_answer(document: Any) -> Response:
    """Return plain data as JSON."""
    return Response(encode(document), media_type="application/json")


def encode(document: Any) -> bytes:
    """Return plain data as JSON; a value that JSON does not have is its ``repr``."""
    return msgspec.json.encode(document, enc_hook=repr)


def stream_event(update: Update | None, now: float, as_json: bool) -> bytes:
    """Return an update as a server-sent event; without one, only the time."""
    document: dict[str, Any] = {"now": now}
    if update is not None:
        content = {"data": msgspec.Raw(update.content.encode() or b"null")}
        document |= content if as_json else {"html": update.content}
        document |= {"error": update.error, "since": update.since}
    return b"data: " + msgspec.json.encode(document) + b"\n\n"
