"""What callers want done on a connection, and several of them as one transaction.

A commit is the costly part: it waits for the disk. Errands that come while another is under way
are run together and committed once; each of them still happens whole or not at all.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Errand(Generic[T]):
    """Some work, and where its result is waited for."""

    __slots__ = ("answer", "error", "loop", "result", "work", "writes")

    def __init__(
        self,
        work: Callable[[sqlite3.Connection], T],
        loop: asyncio.AbstractEventLoop,
        writes: bool,
    ) -> None:
        self.work = work
        self.loop = loop
        self.writes = writes
        self.answer: asyncio.Future[T] = loop.create_future()
        self.result: T | None = None
        self.error: BaseException | None = None


def together(errands: Sequence[Errand[Any]], connection: sqlite3.Connection) -> None:
    """Run them in one transaction. One that fails is undone alone.

    Raises:
        sqlite3.Error: nothing of any of them has happened.
    """
    connection.execute("begin immediate")
    try:
        for errand in errands:
            _attempt(errand, connection)
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


def _attempt(errand: Errand[Any], connection: sqlite3.Connection) -> None:
    connection.execute("savepoint umbel_errand")
    try:
        errand.result = errand.work(connection)
    except BaseException as error:
        if not connection.in_transaction:  # SQLite has undone everything: the disk is full, say
            raise
        if "decode to UTF-8" in str(error) and connection.text_factory is str:
            raise  # all of them once more, by somebody who can read it
        errand.error = error
        connection.execute("rollback to umbel_errand")
    connection.execute("release umbel_errand")


def tell(errands: Sequence[Errand[Any]]) -> None:
    """Hand the results back to the event loop."""
    with suppress(RuntimeError):  # the loop has ended, and whoever waited with it
        errands[0].loop.call_soon_threadsafe(_settle, errands)


def _settle(errands: Sequence[Errand[Any]]) -> None:
    for errand in errands:
        if errand.answer.done():
            continue
        if errand.error is not None:
            errand.answer.set_exception(errand.error)
        else:
            errand.answer.set_result(errand.result)
