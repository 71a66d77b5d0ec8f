"""Saved views: filters of the list of jobs, which a user has given a name.

The views of a user are the entry ``views/<user>``, a JSON object, so they are bounded together.
They end with their user.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from umbel.backends import Coordination, Put, json_value
from umbel.errors import ConfigurationError, NotAllowed

VIEWS = "views/"
MAX_VIEWS = 30
MAX_NAME_LENGTH = 60
MAX_VIEW_BYTES = 2_000
"""So that all views of a user fit into one entry."""

Filters = dict[str, str]


class SavedViews:
    """Reads and changes the views of users."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    async def all(self, user: str) -> dict[str, Filters]:
        """Return the views of a user by name: the filters of each."""
        return (await self._read(user))[0]

    async def save(self, user: str, name: str, filters: Mapping[str, str]) -> None:
        """Add a view, or replace the one with this name.

        Raises:
            ConfigurationError: the name cannot be used, or the view is too large.
            NotAllowed: the user has too many views.
        """
        if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable() or name != name.strip():
            raise ConfigurationError(
                f"name={name!r:.80}: give 1 to {MAX_NAME_LENGTH} printable characters"
            )
        if (size := len(json_value({name: filters}))) > MAX_VIEW_BYTES:
            raise ConfigurationError(
                f"view: {size:,} bytes with its filters; at most {MAX_VIEW_BYTES:,} are allowed"
            )
        while True:
            views, revision = await self._read(user)
            if name not in views and len(views) >= MAX_VIEWS:
                raise NotAllowed(f"You have {MAX_VIEWS} saved views; delete one first.")
            if await self._write(user, {**views, name: dict(filters)}, revision):
                return

    async def remove(self, user: str, name: str) -> bool:
        """Remove a view. Return whether there was one."""
        while True:
            views, revision = await self._read(user)
            if name not in views:
                return False
            del views[name]
            if await self._write(user, views, revision):
                return True

    async def _read(self, user: str) -> tuple[dict[str, Filters], int]:
        key = VIEWS + user
        page = await self._coordination.read(key, limit=1)
        if not page.entries or page.entries[0].key != key:
            return {}, 0
        entry = page.entries[0]
        try:
            return msgspec.json.decode(entry.value, type=dict[str, Filters]), entry.revision
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {}, entry.revision  # written by another program

    async def _write(self, user: str, views: Mapping[str, Filters], revision: int) -> bool:
        """Write the views of a user. Return False if they have changed since this revision."""
        key = VIEWS + user
        puts = [Put(key, json_value(views))] if views else []
        deletes = [] if views else [key]
        return await self._coordination.commit({key: revision}, puts, deletes) is not None
