"""The audit log: which user did what, when, and with which result.

Each action is the entry ``audit/<time>-<number>``, kept for 90 days. Keys sort by time, so the
newest lines are read by the time at which they begin.

A line is written before its action, and its outcome after it. So no action is missing in the log,
also if the store cannot be reached when it has been done.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec

from umbel.backends import Coordination, Put, json_value
from umbel.errors import UmbelError, Unavailable

AUDIT = "audit/"
KEPT_SECONDS = 90 * 86_400.0
_LATEST = 10**13
"""Keys count down from this number of milliseconds, so that the newest entry is read first."""
_MAX_TEXT = 500
NO_OUTCOME = "not known: the action has not ended, or the store was unreachable when it ended"


class AuditLine(msgspec.Struct, frozen=True, kw_only=True):
    """One action of a user."""

    at: float
    """The store's time, in seconds since 1970."""
    user: str
    address: str = ""
    """Where the request came from."""
    action: str
    subject: str = ""
    """What the action was applied to."""
    reason: str = ""
    outcome: str = ""
    """The result, or the error."""


class Outcome:
    """The result of an action, for the audit log."""

    def __init__(self) -> None:
        self.text = "done"


class AuditLog:
    """Writes and reads the audit log."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    async def write(
        self,
        *,
        user: str,
        action: str,
        subject: str = "",
        address: str = "",
        reason: str = "",
        outcome: str = "",
    ) -> None:
        """Add a line. Long texts are cut."""
        texts = {"user": user, "action": action, "subject": subject, "address": address}
        await self._add(texts | {"reason": reason, "outcome": outcome})

    @asynccontextmanager
    async def recorded(
        self, *, user: str, action: str, subject: str = "", address: str = "", reason: str = ""
    ) -> AsyncIterator[Outcome]:
        """Add a line, run the block, and complete the line with its outcome or its error.

        Raises:
            Unavailable: the line cannot be written. The block is not run.
        """
        texts = {"user": user, "action": action, "subject": subject, "address": address}
        key, line = await self._add(texts | {"reason": reason, "outcome": NO_OUTCOME})
        outcome = Outcome()
        try:
            yield outcome
        except Unavailable:
            raise  # it may have been done or not
        except UmbelError as error:
            await self._complete(key, line, f"refused: {error}")
            raise
        except Exception:
            await self._complete(key, line, "failed")
            raise
        await self._complete(key, line, outcome.text)

    async def _add(self, texts: dict[str, str]) -> tuple[str, AuditLine]:
        now = (await self._coordination.read(AUDIT, limit=1)).now
        line = AuditLine(at=now, **{name: text[:_MAX_TEXT] for name, text in texts.items()})
        key = f"{AUDIT}{_LATEST - int(now * 1000):013d}-{secrets.token_hex(4)}"
        await self._coordination.commit({}, [Put(key, json_value(line), KEPT_SECONDS)])
        return key, line

    async def _complete(self, key: str, line: AuditLine, outcome: str) -> None:
        line = msgspec.structs.replace(line, outcome=outcome[:_MAX_TEXT])
        with suppress(Unavailable):  # the line says that its outcome is not known
            await self._coordination.commit({}, [Put(key, json_value(line), KEPT_SECONDS)])

    async def read(self, after: str = "", limit: int = 100) -> tuple[list[AuditLine], str | None]:
        """Return the newest lines after a cursor, and the cursor of the next page."""
        page = await self._coordination.read(
            AUDIT, after=AUDIT + after if after else "", limit=limit
        )
        lines: list[AuditLine] = []
        for entry in page.entries:
            try:
                lines.append(msgspec.json.decode(entry.value, type=AuditLine))
            except msgspec.DecodeError:
                continue  # written by another program
        last = page.entries[-1].key.removeprefix(AUDIT) if page.more else None
        return lines, last
