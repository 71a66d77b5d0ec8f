"""Job ids as callers write them."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from umbel.errors import UnknownJob


def canonical(job: str) -> str:
    """The id as the database writes it. Raises UnknownJob: what is no UUID is no job's id."""
    try:
        return str(UUID(job))
    except (ValueError, AttributeError, TypeError):
        raise unknown(job) from None


def by_canonical(jobs: Iterable[str]) -> dict[str, str]:
    """Ids that may be known, from the database's form to the caller's."""
    found: dict[str, str] = {}
    for job in jobs:
        try:
            found[canonical(job)] = job
        except UnknownJob:
            continue
    return found


def unknown(job: str) -> UnknownJob:
    """The error for an id nobody knows."""
    return UnknownJob(f"no job {job}: never published here, rolled back, or pruned")
