"""Chunks: several calls of a task in one job."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from umbel.errors import BadMessage, NodeFailed
from umbel.messages import Delivery, NodeSpec
from umbel.tasks import Task, current
from umbel.tasks.replacing import ChunkResult, failed_call
from umbel.tasks.task import CPUTask, IOTask


def chunk_task(
    task: Task[..., Any], data: Any, node: NodeSpec, delivery: Delivery
) -> Task[..., Any]:
    """Return a task without parameters that makes the calls of a chunk. Raise BadMessage."""
    calls = _calls(task, data)
    chunk = _ChunkRun(task, node, delivery)

    async def call_each() -> ChunkResult:
        for number, (args, kwargs) in enumerate(calls):
            try:
                chunk.add(await task.function(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - code of users
                chunk.add_failure(number, error)
        return chunk.result()

    def call_each_blocking() -> ChunkResult:
        for number, (args, kwargs) in enumerate(calls):
            current.checkpoint()
            try:
                chunk.add(task.function(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - code of users
                chunk.add_failure(number, error)
        return chunk.result()

    if asyncio.iscoroutinefunction(task.function):
        made: Task[..., Any] = IOTask(call_each, task.name, task.declared)
    else:
        made = CPUTask(call_each_blocking, task.name, task.declared)
    made.bind(task.sender)
    return made


class _ChunkRun:
    """Collects what the calls of one run return."""

    def __init__(self, task: Task[..., Any], node: NodeSpec, delivery: Delivery) -> None:
        self._task = task
        self._node = node
        self._delivery = delivery
        self._values: list[Any] = []
        self._failed: list[int] = []

    def add(self, value: Any) -> None:
        self._values.append(value)

    def add_failure(self, number: int, error: Exception) -> None:
        """Record a failed call, if failures are collected and this is the last attempt."""
        job = self._delivery.id
        delay = self._task.declared.retry.delay_after(error, self._delivery.attempt, job, 0.0)
        if self._node.errors != "collect" or delay is not None:
            raise error
        label = f"{self._node.path}[{number}] {self._task.name}"
        text = f"{type(error).__name__}: {error}"
        self._failed.append(len(self._values))
        self._values.append(failed_call(NodeFailed(label, job, text)))

    def result(self) -> ChunkResult:
        return ChunkResult(self._values, self._failed)


def _calls(task: Task[..., Any], data: Any) -> list[tuple[list[Any], dict[str, Any]]]:
    """Return the arguments of each call. Raise BadMessage."""
    args = data.get("args") if isinstance(data, Mapping) else None
    calls = args[0] if isinstance(args, list | tuple) and args else None
    if not isinstance(calls, list | tuple):
        raise BadMessage("data", "a chunk must have a list of calls as its only argument")
    kwargs = data.get("kwargs") or {}
    return [task.parameters.decode({"args": one, "kwargs": kwargs}) for one in calls]
