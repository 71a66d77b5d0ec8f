"""Connections for step transactions: user code works in a transaction that Umbel ends."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from umbel.errors import ConfigurationError

_OURS = (
    "the transaction of a step ends with the step: its effects and the step are committed together."
    " Leave {what} out, and raise an exception to undo everything"
)


class StepConnection(sqlite3.Connection):
    """A connection whose transaction the user code cannot end by mistake."""

    is_in_step = False

    def commit(self) -> None:
        """Raise ConfigurationError inside a step."""
        if self.is_in_step:
            self._refuse("commit()")
        super().commit()

    def rollback(self) -> None:
        """Raise ConfigurationError inside a step."""
        if self.is_in_step:
            self._refuse("rollback()")
        super().rollback()

    def __exit__(self, *failure: Any) -> Any:
        # ``with connection:`` commits at its end. Inside a step, the step commits.
        return False if self.is_in_step else super().__exit__(*failure)

    def _refuse(self, what: str) -> NoReturn:
        raise ConfigurationError(f"connection: {_OURS.format(what=what)}")


@contextmanager
def lend(connection: StepConnection) -> Iterator[None]:
    """Let user code use the connection in the block, and reset its row and text factories then.

    Raises:
        ConfigurationError: the user code ended the transaction.
    """
    connection.is_in_step = True
    try:
        yield
        if not connection.in_transaction:
            connection._refuse("COMMIT and ROLLBACK")
    finally:
        connection.is_in_step = False
        connection.row_factory, connection.text_factory = None, str


def main_file(connection: sqlite3.Connection) -> str:
    """Return the main file of a connection; empty for a database in memory."""
    cursor = connection.cursor()
    cursor.row_factory = None
    found: str = next(row[2] for row in cursor.execute("pragma database_list") if row[1] == "main")
    return found


def is_same_file(one: str, other: str) -> bool:
    """Return whether two paths name one file. It need not exist yet."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


def begin(connection: sqlite3.Connection) -> None:
    """Begin the caller's transaction if it is not open, as the caller's next write would.

    Raises:
        ConfigurationError: the connection commits each statement by itself.
    """
    if connection.in_transaction:
        return
    if connection.isolation_level is None:
        raise ConfigurationError(
            "connection: it has no transaction open and commits each statement by itself;"
            " execute BEGIN before the step, and COMMIT after it"
        )
    connection.execute("begin immediate")
