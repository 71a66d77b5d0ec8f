"""What a canvas is called in paths, lists and error texts."""

from __future__ import annotations

from typing import Any

from umbel.tasks.canvas import Chain
from umbel.tasks.task import Signature
from umbel.tasks.waiting_nodes import Signal
from umbel.tasks.workflow import WorkflowCall


def short_name(canvas: Any) -> str:
    """Return the last word of a task's name, or what a canvas is."""
    if isinstance(canvas, WorkflowCall):
        text = canvas.workflow.name
    elif isinstance(canvas, Signature):
        text = canvas.task.name
    elif isinstance(canvas, Signal):
        return canvas.name.replace(".", "-")
    else:
        return type(canvas).__name__.lower()
    return text.rpartition(".")[2] or "node"


def label_of(canvas: Any, limit: int = 80) -> str:
    """Return a short description of a canvas."""
    if isinstance(canvas, WorkflowCall):
        text = canvas.workflow.name
    elif isinstance(canvas, Signature):
        text = canvas.task.name
    elif isinstance(canvas, Chain):
        text = " | ".join(label_of(part, limit // 2) for part in canvas.parts[:8])
    else:
        text = repr(canvas)
    return text if len(text) <= limit else text[: limit - 1] + "…"
