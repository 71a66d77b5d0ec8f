"""Answers to whoever asked: pushed to the list that the asker names, as structured events."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from umbel.backends.redis.database import Database
from umbel.backends.redis.scripts import octets, pack, scripts
from umbel.backends.transport import Reply
from umbel.errors import Unavailable
from umbel.messages.wire import write

_REPLY = scripts("transport.lua", "streams.lua")["reply"]
_OURS = re.compile(r"umbel:\{(?![^}]*\}:reply:)")
"""Keys that Umbel keeps its own things in. Those for answers are free to use: in a cluster an
asker needs one in the slot of the namespace."""


async def hand_out(database: Database, replies: Sequence[Reply]) -> None:
    """See ``Transport.reply``. Each list is kept for an hour after its last document.

    Raises:
        Unavailable: some may be missing; one address that is refused keeps nothing from others.
    """
    documents: dict[str, list[Any]] = {}
    for one in replies:
        if not _OURS.match(one.asked.address):
            documents.setdefault(one.asked.address, []).append(octets(write(one.document)))
    problem: Unavailable | None = None
    for address, some in documents.items():
        try:
            await database.run(_REPLY, address, pack(some))
        except Unavailable as error:
            problem = error
    if problem is not None:
        raise problem
