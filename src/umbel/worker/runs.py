"""The values that a run passes through, from a claimed job to its report.

::

    Delivery ─ activate ─▶ Activation ─ run ─▶ EndedRun ─ decide ─▶ Report ─ settle ─▶ store

``TaskRunner`` calls the steps in this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from umbel.messages import Delivery, Envelope, Growth, NodeSpec, Outcome
from umbel.tasks import Pool, Retry, Run, Task, Track


class Activation(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery with everything that its run needs, decoded once."""

    delivery: Delivery
    task: Task[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]
    run: Run
    retry: Retry
    timeout: float | None
    track: Track
    keep: float | None = None
    node: NodeSpec | None = None
    """Its header as a node of a graph, if it is one."""
    unchecked: tuple[tuple[Pool, str], ...] = ()
    """Pools with the members that the job was given; they are checked before the task begins."""


class EndedRun(msgspec.Struct, frozen=True):
    """An activation that has run, with what its task returned or raised."""

    activation: Activation
    value: Any
    error: BaseException | None
    started: float


class Report(msgspec.Struct, frozen=True):
    """The outcome of a delivery, to be settled."""

    delivery: Delivery
    outcome: Outcome
    started: float
    finished: float
    keep: bool = True
    """Whether the store keeps a record of success."""
    follow_ups: Sequence[Envelope] | None = None
    """Messages that are published if the outcome is success."""
    growth: Growth | None = None
    """What replaces the job in its graph."""


class Completion(Protocol):
    """The steps after a run. Executors call them when a task has ended."""

    def decide(self, ended: EndedRun) -> Report:
        """Decide the outcome. Called in the thread that ran the task."""

    def settle(self, report: Report) -> None:
        """Queue the outcome for the store. Called in the worker's event loop."""
