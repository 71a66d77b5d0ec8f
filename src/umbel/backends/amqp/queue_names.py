"""A queue's name on the broker: ``umbel.default.io`` for namespace, queue and kind.

A name has only ASCII letters, digits, dots, dashes and underscores. Every broker accepts these, and
none takes them for a wildcard or a folder.
"""

from __future__ import annotations

import re
from hashlib import sha256

from umbel.backends.transport import Lane

_UNKNOWN_KIND = "any"
"""The kind of messages whose sender did not know the task's kind."""
_MAX_LENGTH = 255
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]|_(?=_|[^A-Za-z0-9._-])|(?<=_)_")
"""Characters that are written as ``__`` and their bytes, and underscores that look like that."""
_UNSAFE_OR_DOT = re.compile(r"[^A-Za-z0-9_-]|_(?=_|[^A-Za-z0-9_-])|(?<=_)_")
_CUT = "__Z"
"""Marks where a name was cut; no character is written like this."""


def queue_name(namespace: str, lane: Lane) -> str:
    """Return the name of a lane's queue. Two lanes never share a name.

    Neither the namespace nor the kind has a dot in it, so that the name can be split again. A name
    that is too long is cut, and ends with a hash of the whole name.
    """
    kind = _UNSAFE_OR_DOT.sub(_escape, lane.kind) or _UNKNOWN_KIND
    name = f"{_UNSAFE_OR_DOT.sub(_escape, namespace)}.{_UNSAFE.sub(_escape, lane.queue)}"
    if name.startswith("amq."):  # RabbitMQ reserves these names
        name = name.replace("a", "__61", 1)
    max_length = _MAX_LENGTH - len(kind) - 1
    if len(name) > max_length:
        digest = sha256(name.encode()).hexdigest()[:32]
        name = f"{name[: max_length - len(digest) - len(_CUT)]}{_CUT}{digest}"
    return f"{name}.{kind}"


def _escape(character: re.Match[str]) -> str:
    return "".join(f"__{byte:02X}" for byte in character[0].encode("utf-8", "surrogatepass"))
