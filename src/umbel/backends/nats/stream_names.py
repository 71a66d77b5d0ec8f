"""What a lane is called on the server: readable where it can be, and never the same for two."""

from __future__ import annotations

import re
from hashlib import sha256

from umbel.backends.nats.jetstream import Stream
from umbel.backends.transport import Lane

_UNSAFE = re.compile("[^A-Za-z0-9_-]")
_NAMESPACE, _QUEUE = 64, 128
"""Characters of each part: a stream's name is a folder's, and may have 255."""
_DIGEST = 32


def stream_of(namespace: str, lane: Lane) -> Stream:
    """A lane's stream. Its subject is ``umbel.default.io``, or ``umbel.default`` without a kind.

    That subject is all that a sender elsewhere has to know, and whoever does not know the task's
    kind leaves it out.
    """
    parts = [_part(namespace, _NAMESPACE), _part(lane.queue, _QUEUE)]
    if lane.kind:
        parts.append(_part(lane.kind, _QUEUE))
    return Stream(name="+".join(parts), subject=".".join(parts))


def _part(text: str, limit: int) -> str:
    """One part of a name, without the signs that mean something to NATS or to a file system.

    Not "%" as the sign of escape: servers use a stream's name as a pattern for printf, and one
    with "%" in it delivers nothing. A long text keeps its start; "~" is in no short one.
    """
    safe = _UNSAFE.sub(_escape, text) or "="
    if len(safe) <= limit:
        return safe
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"{safe[: limit - _DIGEST - 1]}~{digest}"


def _escape(sign: re.Match[str]) -> str:
    return "".join(f"={byte:02X}" for byte in sign[0].encode("utf-8", "surrogatepass"))
