"""The audit log: which user did what, when, and with which result.

Each action is the entry ``audit/<time>-<number>``, kept for 90 days. Keys sort by time, so the
newest lines are read by the time at which they begin.
"""

from __future__ import annotations

import secrets

import msgspec

from umbel.backends import Coordination, Put, json_value

AUDIT = "audit/"
KEPT_SECONDS = 90 * 86_400.0
_LATEST = 10**13
"""Keys count down from this number of milliseconds, so that the newest entry is read first."""
_MAX_TEXT = 500


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
        now = (await self._coordination.read(AUDIT, limit=1)).now
        line = AuditLine(
            at=now,
            user=user[:_MAX_TEXT],
            address=address[:_MAX_TEXT],
            action=action[:_MAX_TEXT],
            subject=subject[:_MAX_TEXT],
            reason=reason[:_MAX_TEXT],
            outcome=outcome[:_MAX_TEXT],
        )
        key = f"{AUDIT}{_LATEST - int(now * 1000):013d}-{secrets.token_hex(4)}"
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
