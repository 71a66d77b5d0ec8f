"""The name of a lane's queue on the server: ``umbel.default.io`` for namespace, queue and kind."""

from __future__ import annotations

from hashlib import sha256
from urllib.parse import quote

from umbel.backends.transport import Lane

_UNKNOWN_KIND = "any"
"""Stands for the empty kind: the sender did not know the task."""
_MAX_NAME_BYTES = 255
"""The limit of AMQP."""


def queue_name(namespace: str, lane: Lane) -> str:
    """Return the name of a lane's queue. It is unique.

    Neither the namespace nor the kind contains a dot, so the name can be split again. A name that
    is too long is cut and ends with its hash.
    """
    kind = _escape(lane.kind).replace(".", "%2E") or _UNKNOWN_KIND
    name = f"{_escape(namespace).replace('.', '%2E')}.{_escape(lane.queue)}"
    if name.startswith("amq."):  # reserved by the server
        name = name.replace("a", "%61", 1)
    max_length = _MAX_NAME_BYTES - len(kind) - 1
    if len(name) > max_length:
        digest = sha256(name.encode()).hexdigest()[:32]
        name = f"{name[: max_length - len(digest) - 1]}~{digest}"
    return f"{name}.{kind}"


def _escape(text: str) -> str:
    """Percent-encode all but ASCII letters, digits, underscore, dot and dash."""
    return quote(text, safe="", errors="surrogatepass").replace("~", "%7E")
