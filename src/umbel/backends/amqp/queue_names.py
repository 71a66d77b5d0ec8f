"""A queue's name on the broker: ``umbel.default.io`` for namespace, queue and kind.

ASCII letters, digits, dots, dashes and underscores only: every broker takes those, and none reads
a wildcard or a folder into them.
"""

from __future__ import annotations

import re
from hashlib import sha256

from umbel.backends.transport import Lane

_ANY = "any"
"""The kind of what nobody knew the kind of."""
_LONGEST = 255
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]|_(?=_|[^A-Za-z0-9._-])|(?<=_)_")
"""Signs that are written as ``__`` and their bytes, among them underscores that would look so."""
_UNSAFE_OR_DOT = re.compile(r"[^A-Za-z0-9_-]|_(?=_|[^A-Za-z0-9_-])|(?<=_)_")
_CUT = "__Z"
"""Follows what was cut; no sign is written so."""


def queue_name(namespace: str, lane: Lane) -> str:
    """The name of a lane's queue. Two lanes never share one.

    The namespace has no dot in it and the kind has none, so it can be taken apart again. What is
    too long is cut, and told apart by what all of it hashes to.
    """
    kind = _UNSAFE_OR_DOT.sub(_escape, lane.kind) or _ANY
    name = f"{_UNSAFE_OR_DOT.sub(_escape, namespace)}.{_UNSAFE.sub(_escape, lane.queue)}"
    if name.startswith("amq."):  # RabbitMQ keeps these to itself
        name = name.replace("a", "__61", 1)
    room = _LONGEST - len(kind) - 1
    if len(name) > room:
        digest = sha256(name.encode()).hexdigest()[:32]
        name = f"{name[: room - len(digest) - len(_CUT)]}{_CUT}{digest}"
    return f"{name}.{kind}"


def _escape(sign: re.Match[str]) -> str:
    return "".join(f"__{byte:02X}" for byte in sign[0].encode("utf-8", "surrogatepass"))
