"""Folds the documents of workers into series of 10 seconds, minutes and hours, without a leader.

One commit adds documents to the entries of all series and deletes them. Its checks are the
revisions of the documents and of the entries, so each document counts once, whichever workers fold
at the same time and whenever one of them dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from umbel.backends import Coordination, Entry, Page, Put
from umbel.charts.counters import Counters, DepthSums, decode, encode, merge

NUMBERS = "numbers/"
NEW = "numbers/new/"
"""Precedes the documents of workers: ``numbers/new/<time>/<worker>``."""
WRITERS = "numbers/writers/"
PERIOD_SECONDS = 10
_DEPTH_SECONDS = 3 * PERIOD_SECONDS
"""A reading of the queues is added to a period that began at most so long ago."""
_MAX_DOCUMENTS = 200
_MAX_PERIODS = 6
"""How many documents, and of how many periods, one commit folds."""


class Series(NamedTuple):
    """Entries of one length, each kept for so many seconds."""

    prefix: str
    seconds: int
    kept: float

    def key(self, time: float) -> str:
        """Return the key of the entry for a time."""
        return f"{self.prefix}{align(time, self.seconds):012d}"


TEN_SECONDS = Series("numbers/10s/", 10, 3_600.0 + 120)
MINUTES = Series("numbers/1m/", 60, 48 * 3_600.0)
HOURS = Series("numbers/1h/", 3_600, 90 * 86_400.0)
SERIES = (TEN_SECONDS, MINUTES, HOURS)


def align(time: float, seconds: int) -> int:
    """Return the beginning of the period of this length in which a time is."""
    return int(time // seconds) * seconds


def time_of(key: str, prefix: str) -> int | None:
    """Return the time in the key of an entry or a document; None if it has none."""
    text = key.removeprefix(prefix).partition("/")[0]
    return int(text) if len(text) == 12 and text.isascii() and text.isdigit() else None


class Folder:
    """Folds documents. ``fold`` is one commit."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    async def read(self) -> Page:
        """Return the oldest documents."""
        return await self._coordination.read(NEW, limit=_MAX_DOCUMENTS)

    async def fold(self, page: Page, depths: DepthSums | None = None) -> bool:
        """Fold the documents of a page, those of its first periods. Return whether it was done.

        Documents that cannot be read are deleted. ``depths`` is a reading of the queues, which is
        added to the newest period if that has none.

        Raises:
            Unavailable: either all of it happened or none of it.
        """
        found, deletes = _periods(page)
        checks = {entry.key: entry.revision for entry in deletes}
        entries = await self._entries([*found], page.now)
        if depths is not None and found and page.now - max(found) < _DEPTH_SECONDS:
            known = entries.get(TEN_SECONDS.key(max(found)))
            stored = decode(known.value) if known is not None else None
            if stored is None or stored.depths is None:
                found[max(found)].append(Counters(depths=depths))
        puts = []
        for series in SERIES:
            for key, (left, many) in _targets(series, found, page.now).items():
                entry = entries.get(key)
                before = decode(entry.value) if entry is not None else None
                checks[key] = entry.revision if entry is not None else 0
                puts.append(Put(key, encode(merge([before or Counters(), *many])), left))
        deleted = [entry.key for entry in deletes]
        return await self._coordination.commit(checks, puts, deleted) is not None

    async def _entries(self, times: Sequence[int], now: float) -> dict[str, Entry]:
        """Return the entries of all series for these times, as far as they exist."""
        keys = {series.key(time) for series in SERIES for time in times}
        pages = [await self._coordination.read(key, limit=1) for key in sorted(keys)]
        return {entry.key: entry for page in pages for entry in page.entries if entry.key in keys}


def _periods(page: Page) -> tuple[dict[int, list[Counters]], list[Entry]]:
    """Return the counters by time, and the entries that contain them or cannot be read."""
    found: dict[int, list[Counters]] = {}
    used: list[Entry] = []
    for entry in page.entries:
        time, counters = time_of(entry.key, NEW), decode(entry.value)
        if time is not None and counters is not None:
            # After the store's clock was set back, a document may be of the future.
            time = align(min(time, page.now), PERIOD_SECONDS)
            if time not in found and len(found) >= _MAX_PERIODS:
                continue
            found.setdefault(time, []).append(counters)
        used.append(entry)
    return found, used


def _targets(
    series: Series, found: dict[int, list[Counters]], now: float
) -> dict[str, tuple[float, list[Counters]]]:
    """Return for each entry of a series how long it is kept from now, and what is added to it."""
    targets: dict[str, tuple[float, list[Counters]]] = {}
    for time, many in found.items():
        left = align(time, series.seconds) + series.seconds + series.kept - now
        if left > 0:
            targets.setdefault(series.key(time), (left, []))[1].extend(many)
    return targets
