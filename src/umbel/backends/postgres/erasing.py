"""Deletes a namespace from a PostgreSQL database."""

from __future__ import annotations

from typing import ClassVar

from umbel.backends.sql.erasing import SqlEraser


class PostgresEraser(SqlEraser):
    """See ``umbel.backends.erasing.NamespaceEraser``."""

    more_tables: ClassVar = {"gate_event": "seq"}
