"""Paths of nodes in a canvas, such as ``0.1.charge``."""

from __future__ import annotations

from collections.abc import Sequence

from umbel.messages.nodes import Inside

MAX_ENCLOSED = 8
"""How many sub-workflows and replaced nodes around a node are known. Deeper ones are not drawn."""


def below(path: str, number: int | str) -> str:
    """Return the path of a part."""
    return f"{path}.{number}" if path else str(number)


def numbered(path: str, outer: str) -> str:
    """Return a path up to its last number, ``0.1`` of ``0.1.charge``, or the outer one."""
    parts = path.split(".")
    while len(parts) > depth_of(outer) and not parts[-1].isdigit():
        parts.pop()
    return ".".join(parts)


def depth_of(path: str) -> int:
    """Return how many words a path has."""
    return path.count(".") + 1 if path else 0


def enclosed(around: Inside, path: str, name: str) -> Inside:
    """Return what is around the nodes of a sub-workflow, or of what replaces a node."""
    return (*around, (depth_of(path), name))[:MAX_ENCLOSED]


def common_path(paths: Sequence[str]) -> str:
    """Return the path of the smallest part of a canvas that contains all of these."""
    common = paths[0].split(".")
    for path in paths[1:]:
        parts = path.split(".")
        same = [one == other for one, other in zip(common, parts, strict=False)]
        common = common[: same.index(False) if False in same else len(same)]
    return ".".join(common)
