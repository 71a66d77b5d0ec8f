"""A test's client of the application: publishes jobs and queries the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from umbel import Signature, Umbel
from umbel.backends import JobFilter
from umbel.messages import Record
from umbel.operations import Operations, WorkerView

T = TypeVar("T")


class Client:
    """Publishes from the test process; reads everything else from the store."""

    def __init__(self, url: str) -> None:
        self.url = url
        broker, _, store = url.partition("|")
        how: Any = {"namespace": "scenario", "deadline": 20, "backlog": "none"}
        self.app = Umbel(broker=broker, store=store or None, **how)

    def publish(self, calls: list[Signature[Any]]) -> list[str]:
        published: list[str] = []
        for at in range(0, len(calls), 1000):
            published += [handle.id for handle in self.app.publish_many(calls[at : at + 1000])]
        return published

    def ask(self, question: Callable[[Operations], Awaitable[T]]) -> T:
        async def answer() -> T:
            operations = self.app.operations()
            try:
                return await question(operations)
            finally:
                await operations.close()

        return asyncio.run(answer())

    def unfinished(self) -> int:
        """Return the number of unfinished jobs, including those that wait at a gate."""

        async def count() -> int:
            roles = self.app.backend.open()
            try:
                return sum(depth.jobs for depth in await roles.broker.depths())
            finally:
                await roles.close()

        return asyncio.run(count())

    def records(self) -> list[Record]:
        return self.ask(lambda operations: operations.jobs(JobFilter(limit=10_000_000)))

    def record(self, job: str) -> Record:
        return self.ask(lambda operations: operations.job(job))

    def live(self) -> int:
        queues = self.ask(lambda operations: operations.queues())
        return sum(queue.queued + queue.scheduled + queue.running for queue in queues)

    def workers(self) -> list[WorkerView]:
        return self.ask(lambda operations: operations.workers())

    def close(self) -> None:
        self.app.close()
