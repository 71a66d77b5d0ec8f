"""Whether the job store has all jobs whose publishing was confirmed to a publisher."""

from __future__ import annotations

from pathlib import Path

from chaos.append_log import AppendLog
from chaos.audit import Audit
from chaos.event_log import Event, read
from chaos.history import SURE


def published(event_folder: Path) -> list[Event]:
    """Return the confirmed publishing events, in the order of the machine's clock."""
    return [event for event in read(event_folder, "publisher-*.events") if event.what in SURE]


def all_recorded(event_folder: Path, store: Audit | AppendLog) -> bool:
    """Return whether the store has all confirmed jobs.

    If the store was unavailable, only the broker may have some of them.
    """
    recorded = {entry.job for entry in store.so_far() if entry.what == "published"}
    return all(event.job in recorded for event in published(event_folder))
