"""Replies to senders: pushed as structured events to the list that the sender names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from umbel.backends.redis.database import Database
from umbel.backends.redis.scripts import pack, pack_bytes, scripts
from umbel.backends.transport import Reply
from umbel.errors import Unavailable
from umbel.messages.wire import write

_REPLY = scripts("transport.lua", "streams.lua")["reply"]
_OWN_KEYS = re.compile(r"umbel:\{(?![^}]*\}:reply:)")
"""Keys of Umbel's own data. Keys for replies are allowed: in a cluster, a sender needs a list in
the slot of the namespace.
"""


async def push_replies(database: Database, replies: Sequence[Reply]) -> None:
    """See ``Transport.reply``. Each list is kept for an hour after its last document.

    Raises:
        Unavailable: some replies may be missing. One that is refused does not prevent the others.
    """
    documents: dict[str, list[Any]] = {}
    for one in replies:
        if not _OWN_KEYS.match(one.asked.address):
            documents.setdefault(one.asked.address, []).append(pack_bytes(write(one.document)))
    failure: Unavailable | None = None
    for address, some in documents.items():
        try:
            await database.run(_REPLY, address, pack(some))
        except Unavailable as error:
            failure = error
    if failure is not None:
        raise failure
