"""The name and subject of a lane's stream: readable and unique."""

from __future__ import annotations

import re
from hashlib import sha256

from umbel.backends.nats.jetstream import Stream
from umbel.backends.transport import Lane

_UNSAFE = re.compile("[^A-Za-z0-9_-]")
_MAX_NAMESPACE_LENGTH, _MAX_QUEUE_LENGTH = 64, 128
"""A stream's name is the name of a folder, and may have 255 characters."""
_DIGEST_LENGTH = 32


def stream_of(namespace: str, lane: Lane) -> Stream:
    """Return a lane's stream.

    The subject is ``umbel.default.io``, or ``umbel.default`` without a kind. Foreign senders
    publish to that subject. A sender that does not know the kind leaves it out.
    """
    parts = [_part(namespace, _MAX_NAMESPACE_LENGTH), _part(lane.queue, _MAX_QUEUE_LENGTH)]
    if lane.kind:
        parts.append(_part(lane.kind, _MAX_QUEUE_LENGTH))
    return Stream(name="+".join(parts), subject=".".join(parts))


def _part(text: str, limit: int) -> str:
    """Return one part of a name, without characters that are special to NATS or a file system.

    The escape character is not "%": servers use a stream's name as a format for printf, and a
    stream with "%" in its name delivers nothing. A long text is cut and gets its hash after a "~".
    """
    safe = _UNSAFE.sub(_escape, text) or "="
    if len(safe) <= limit:
        return safe
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    return f"{safe[: limit - _DIGEST_LENGTH - 1]}~{digest}"


def _escape(character: re.Match[str]) -> str:
    return "".join(f"={byte:02X}" for byte in character[0].encode("utf-8", "surrogatepass"))
