"""A queue's name on the server: ``umbel.default.io`` for namespace, queue and kind."""

from __future__ import annotations

from hashlib import sha256
from urllib.parse import quote

from umbel.backends.transport import Lane

_ANY = "any"
"""The kind of what nobody knew the kind of."""
_LONGEST = 255
"""Bytes that AMQP allows a name."""


def queue_name(namespace: str, lane: Lane) -> str:
    """The name of a lane's queue. Two lanes never share one.

    The namespace has no dot in it and the kind has none, so it can be taken apart again. What is
    too long is cut, and told apart by what all of it hashes to.
    """
    kind = _plain(lane.kind).replace(".", "%2E") or _ANY
    name = f"{_plain(namespace).replace('.', '%2E')}.{_plain(lane.queue)}"
    if name.startswith("amq."):  # reserved by the server
        name = name.replace("a", "%61", 1)
    room = _LONGEST - len(kind) - 1
    if len(name) > room:
        digest = sha256(name.encode()).hexdigest()[:32]
        name = f"{name[: room - len(digest) - 1]}~{digest}"
    return f"{name}.{kind}"


def _plain(text: str) -> str:
    """ASCII letters, digits, underscore, dot and dash as they are; the rest percent-encoded."""
    return quote(text, safe="", errors="surrogatepass").replace("~", "%7E")
