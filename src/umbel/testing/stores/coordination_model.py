"""A model of coordination, in plain Python over dictionaries.

An adapter chooses the revisions; the model checks that they grow, and where they have to be equal.
When an adapter notices a lapse is up to it, so the revision of a section may grow once more after
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from umbel.backends import Page, Put
from umbel.backends.coordination import section_of

SLACK = 0.5
"""Tolerance for the difference between the clocks of the store and of the test."""


@dataclass
class StoredEntry:
    """An entry in the model."""

    value: bytes
    revision: int
    until: float | None


@dataclass
class Section:
    """What is known of a section."""

    revision: int = 0
    may_grow: bool = False
    """Whether a lapse may have changed the revision since."""
    must_grow: bool = False
    """Whether a lapse has changed it, and no commit has since."""

    def see(self, revision: int) -> None:
        """Check a revision that the adapter returned, and remember it."""
        if self.must_grow:
            assert revision > self.revision, "a lapse did not change the revision"
        elif self.may_grow:
            assert revision >= self.revision
        else:
            assert revision == self.revision, "the revision changed without a change"
        self.revision, self.may_grow, self.must_grow = revision, False, False


@dataclass
class CoordinationModel:
    """The entries of one namespace."""

    entries: dict[str, StoredEntry] = field(default_factory=dict)
    sections: dict[str, Section] = field(default_factory=dict)
    last: int = 0
    """The highest revision that was returned."""

    def lapse(self, now: float) -> None:
        """Remove the entries whose lease has lapsed."""
        gone = [k for k, e in self.entries.items() if e.until is not None and e.until <= now]
        for key in gone:
            del self.entries[key]
            section = self.section(key)
            section.may_grow = section.must_grow = True

    def section(self, prefix: str) -> Section:
        """Return the section of a key or prefix."""
        return self.sections.setdefault(section_of(prefix), Section())

    def holds(self, checks: Mapping[str, int]) -> bool:
        """Return whether every check holds."""
        return all(self.revision(key) == revision for key, revision in checks.items())

    def revision(self, key: str) -> int:
        """Return the revision of an entry; 0 if it is absent."""
        return self.entries[key].revision if key in self.entries else 0

    def commit(
        self, puts: Sequence[Put], deletes: Sequence[str], revision: int, now: float
    ) -> None:
        """Apply a commit that happened."""
        assert revision > self.last, "a commit has no higher revision than everything before it"
        self.last = revision
        for put in puts:
            until = None if put.seconds is None else now + put.seconds
            self.entries[put.key] = StoredEntry(put.value, revision, until)
        for key in deletes:
            self.entries.pop(key, None)
        for key in (*(put.key for put in puts), *deletes):
            section = self.section(key)
            section.revision, section.must_grow = revision, False

    def renew(self, held: Mapping[str, int], until: float) -> list[str]:
        """Renew leases; return the keys that are lost."""
        lost = [key for key, revision in held.items() if self.revision(key) != revision]
        for key in held:
            if key not in lost and self.entries[key].until is not None:
                self.entries[key].until = until
        return lost

    def check(self, prefix: str, after: str, limit: int, page: Page) -> None:
        """Check a page that the adapter returned."""
        keys = [k for k in self.entries if k.startswith(prefix) and k.encode() > after.encode()]
        keys.sort(key=str.encode)
        assert [entry.key for entry in page.entries] == keys[:limit]
        assert page.more == (len(keys) > limit)
        for entry in page.entries:
            known = self.entries[entry.key]
            assert (entry.value, entry.revision) == (known.value, known.revision)
            assert (entry.left is None) == (known.until is None)
            if entry.left is not None and known.until is not None:
                assert abs(known.until - page.now - entry.left) < SLACK
        self.section(prefix).see(page.revision)
        self.last = max(self.last, page.revision)
