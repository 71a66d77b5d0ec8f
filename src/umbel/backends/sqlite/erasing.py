"""Deletes a namespace from a SQLite file."""

from __future__ import annotations

from typing import ClassVar

from umbel.backends.sql.erasing import SqlEraser


class SqliteEraser(SqlEraser):
    """See ``umbel.backends.erasing.NamespaceEraser``."""

    more_tables: ClassVar = {"pruned": "namespace"}
