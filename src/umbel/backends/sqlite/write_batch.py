"""Group commit: the pending writes of one process share a transaction.

A commit is expensive because it waits for the disk. So work that is requested while other work
runs is run together and committed once. Each item still happens completely or not at all.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class WorkItem(Generic[T]):
    """Work on a connection, and the future of its result."""

    __slots__ = ("error", "future", "loop", "result", "work", "writes")

    def __init__(
        self,
        work: Callable[[sqlite3.Connection], T],
        loop: asyncio.AbstractEventLoop,
        writes: bool,
    ) -> None:
        self.work = work
        self.loop = loop
        self.writes = writes
        self.future: asyncio.Future[T] = loop.create_future()
        self.result: T | None = None
        self.error: BaseException | None = None


def run_in_one_transaction(items: Sequence[WorkItem[Any]], connection: sqlite3.Connection) -> None:
    """Run all items in one transaction. If one fails, only that one is rolled back.

    Raises:
        sqlite3.Error: none of them has happened.
    """
    connection.execute("begin immediate")
    try:
        for item in items:
            _attempt(item, connection)
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


def _attempt(item: WorkItem[Any], connection: sqlite3.Connection) -> None:
    connection.execute("savepoint umbel_item")
    try:
        item.result = item.work(connection)
    except BaseException as error:
        if not connection.in_transaction:  # SQLite has rolled back everything: the disk is full
            raise
        if "decode to UTF-8" in str(error) and connection.text_factory is str:
            raise  # the database runs all items again with a tolerant decoder
        item.error = error
        connection.execute("rollback to umbel_item")
    connection.execute("release umbel_item")


def deliver_results(items: Sequence[WorkItem[Any]]) -> None:
    """Set the results of the futures in the event loop."""
    with suppress(RuntimeError):  # the loop is closed, and with it the callers
        items[0].loop.call_soon_threadsafe(_settle, items)


def _settle(items: Sequence[WorkItem[Any]]) -> None:
    for item in items:
        if item.future.done():
            continue
        if item.error is not None:
            item.future.set_exception(item.error)
        else:
            item.future.set_result(item.result)
