"""Chunks: several calls of a task in one job."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from umbel.errors import BadMessage, NodeFailed
from umbel.messages import Delivery, NodeSpec
from umbel.tasks import Retry, Section, Task, current, running
from umbel.tasks.replacing import ChunkResult, Finished, Replacement, failed_call
from umbel.tasks.snooze import Snooze
from umbel.tasks.task import CPUTask, IOTask

_Call = tuple[list[Any], dict[str, Any]]


def chunk_task(
    task: Task[..., Any], data: Any, node: NodeSpec, delivery: Delivery, retry: Retry
) -> Task[..., Any]:
    """Return a task without parameters that makes the calls of a chunk. Raise BadMessage."""
    chunk = _ChunkRun(task, node, delivery, retry)
    calls = [chunk.decode(one) for one in _calls(data)]

    async def call_each() -> ChunkResult:
        for number, call in enumerate(calls):
            try:
                args, kwargs = chunk.arguments(call)
                chunk.add(await task.function(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - code of users
                chunk.add_failure(number, error)
        return chunk.result()

    def call_each_blocking() -> ChunkResult:
        for number, call in enumerate(calls):
            current.checkpoint()
            try:
                args, kwargs = chunk.arguments(call)
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

    def __init__(
        self, task: Task[..., Any], node: NodeSpec, delivery: Delivery, retry: Retry
    ) -> None:
        self._task = task
        self._node = node
        self._delivery = delivery
        self._retry = retry
        self._values: list[Any] = []
        self._failed: list[int] = []

    def decode(self, data: Any) -> _Call | BadMessage:
        """Return the arguments of a call. If failures are collected, also why they do not fit."""
        try:
            return self._task.parameters.decode(data)
        except BadMessage as error:
            if self._node.errors != "collect":
                raise
            return error

    def arguments(self, call: _Call | BadMessage) -> _Call:
        """Return the arguments of a call. Raise BadMessage if they do not fit."""
        if isinstance(call, BadMessage):
            raise call
        return call

    def add(self, value: Any) -> None:
        """Record a result. A call is a chain of its own, so finishing it changes nothing."""
        if isinstance(value, Finished):
            value = value.value
        self._values.append(None if isinstance(value, Replacement) else value)

    def add_failure(self, number: int, error: Exception) -> None:
        """Record a failed call, if failures are collected and this is the last attempt."""
        if self._node.errors != "collect" or not self._is_final(error):
            raise error
        label = f"{self._node.path}[{number}] {self._task.name}"
        text = f"{type(error).__name__}: {error}"
        self._failed.append(len(self._values))
        self._values.append(failed_call(NodeFailed(label, self._delivery.id, text)))

    def result(self) -> ChunkResult:
        return ChunkResult(self._values, self._failed)

    def _is_final(self, error: Exception) -> bool:
        """Whether the job would not be retried after this error."""
        if isinstance(error, Snooze):
            return False
        if isinstance(error, BadMessage):
            return True
        delivery, run = self._delivery, running.get()
        section = run.mark_of(error) if run is not None else None
        policy, tries = self._retry, delivery.attempt
        if isinstance(section, Section):
            if section.policy is None:
                return True
            policy, tries = section.policy, delivery.sections.get(section.name, 0) + 1
        return policy.delay_after(error, tries, delivery.id, 0.0) is None


def _calls(data: Any) -> list[dict[str, Any]]:
    """Return the message of each call. Raise BadMessage."""
    args = data.get("args") if isinstance(data, Mapping) else None
    calls = args[0] if isinstance(args, list | tuple) and args else None
    if not isinstance(calls, list | tuple):
        raise BadMessage("data", "a chunk must have a list of calls as its only argument")
    return [{"args": one, "kwargs": data.get("kwargs") or {}} for one in calls]
