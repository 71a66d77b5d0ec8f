"""What a task returns to change its graph: a canvas that replaces it, or an early end."""

from __future__ import annotations

from typing import Any

import msgspec

from umbel.errors import NodeFailed
from umbel.tasks.composing import Composable


class Replacement(msgspec.Struct, frozen=True, eq=False):
    """Returned by a task that is replaced by a canvas: see ``current.replace``."""

    canvas: Composable[Any]


class Finished(msgspec.Struct, frozen=True, eq=False):
    """Returned by a task that ends its chain early: see ``current.finish``."""

    value: Any


class ChunkResult(msgspec.Struct, frozen=True, eq=False):
    """Returned by a chunk: the results of its calls, some of which may have failed."""

    values: list[Any]
    failed: list[int]
    """The positions of failed calls. Their values have the keys ``node`` and ``error``."""


def failed_call(error: NodeFailed) -> dict[str, str]:
    """Return what a chunk stores for a failed call."""
    return {"node": error.node, "error": error.error}
