"""Connections on loan: the user's code works in a transaction that is ours to end."""

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


class Lent(sqlite3.Connection):
    """A connection whose transaction the borrower cannot end by mistake."""

    on_loan = False

    def commit(self) -> None:
        """Refused while on loan. Raises ConfigurationError."""
        if self.on_loan:
            self._refuse("commit()")
        super().commit()

    def rollback(self) -> None:
        """Refused while on loan. Raises ConfigurationError."""
        if self.on_loan:
            self._refuse("rollback()")
        super().rollback()

    def __exit__(self, *failure: Any) -> Any:
        # ``with connection:`` commits at its end; on loan the step does.
        return False if self.on_loan else super().__exit__(*failure)

    def _refuse(self, what: str) -> NoReturn:
        raise ConfigurationError(f"connection: {_OURS.format(what=what)}")


@contextmanager
def lent_out(connection: Lent) -> Iterator[None]:
    """While user code has it. Afterwards rows are what they were before.

    Raises:
        ConfigurationError: the transaction was ended in between.
    """
    connection.on_loan = True
    try:
        yield
        if not connection.in_transaction:
            connection._refuse("COMMIT and ROLLBACK")
    finally:
        connection.on_loan = False
        connection.row_factory, connection.text_factory = None, str


def main_file(connection: sqlite3.Connection) -> str:
    """The file of a caller's connection; empty for a database in memory."""
    cursor = connection.cursor()
    cursor.row_factory = None
    found: str = next(row[2] for row in cursor.execute("pragma database_list") if row[1] == "main")
    return found


def is_same_file(one: str, other: str) -> bool:
    """Whether two names are of one file; it need not be written yet."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


def begin(connection: sqlite3.Connection) -> None:
    """Open the caller's transaction, unless it is: as the caller's next write would.

    Raises:
        ConfigurationError: each statement would be a transaction of its own.
    """
    if connection.in_transaction:
        return
    if connection.isolation_level is None:
        raise ConfigurationError(
            "connection: it has no transaction open and commits each statement by itself;"
            " execute BEGIN before the step, and COMMIT after it"
        )
    connection.execute("begin immediate")
