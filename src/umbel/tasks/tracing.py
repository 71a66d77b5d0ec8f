"""Which nodes are made while a workflow is declared, so that unused ones can be found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

tracing: ContextVar[dict[int, Any] | None] = ContextVar("umbel_tracing", default=None)
"""The nodes made so far, by identity; None if no workflow is declared here."""


@contextmanager
def trace() -> Iterator[dict[int, Any]]:
    """Collect the nodes that are made in the block."""
    made: dict[int, Any] = {}
    token = tracing.set(made)
    try:
        yield made
    finally:
        tracing.reset(token)


def note_made(node: T) -> T:
    """Note that a node was made. Returns it."""
    made = tracing.get()
    if made is not None:
        made[id(node)] = node
    return node


def note_replaced(old: Any, new: Any) -> None:
    """Note that a node was made from another, which need not be used any more."""
    made = tracing.get()
    if made is not None:
        made.pop(id(old), None)
        made[id(new)] = new
