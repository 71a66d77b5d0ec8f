"""Translation of SQLite's errors into Umbel's, with the remedy."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from umbel.errors import BadMessage, SchemaError, UmbelError, Unavailable


def translate_error(error: sqlite3.Error, path: str) -> UmbelError:
    """Return the UmbelError for an error of SQLite."""
    text = str(error)
    if isinstance(error, sqlite3.IntegrityError):
        return BadMessage("row", f"{path} does not take it: {text}")
    if "no such table" in text or "no such column" in text:
        return SchemaError(f"{path} has no Umbel tables ({text}); open it once with the app's URL")
    if "full" in text:
        return Unavailable(f"{path}: the disk is full; free some space")
    if "locked" in text or "busy" in text:
        return Unavailable(f"{path} is locked by another process; it holds a write transaction")
    if "readonly" in text or "unable to open" in text:
        return Unavailable(f"{path} cannot be written ({text}); check its folder and permissions")
    return Unavailable(f"{path}: {text}")


@contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """Translate SQLite's errors that the block raises."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate_error(error, path) from error
