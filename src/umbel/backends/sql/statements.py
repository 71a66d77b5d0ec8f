"""Several statements as a generator, so that one implementation runs on every connection.

The generator yields a query with its parameters and is sent the rows that the query returned.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

Row: TypeAlias = tuple[Any, ...]
Query: TypeAlias = Any
"""The SQL as the driver takes it: ``str`` for sqlite3, ``bytes`` for psycopg."""
Statement: TypeAlias = tuple[Query, Mapping[str, Any] | None]
Steps: TypeAlias = Generator[Statement, list[Row], T]
