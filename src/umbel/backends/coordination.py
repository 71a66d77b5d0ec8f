"""The role that stores small versioned entries, on which features that concern a cluster are built.

It is modeled on the key-value store of etcd, for hundreds of operations per second. A key is a
section and a name, ``pauses/task//report``; the section ends with the first slash. Each commit has
a revision, which is higher than that of every commit before it in the namespace. The revision of a
prefix is that of the last change in its section: a prefix may therefore seem to have changed when
another key of its section did.

An entry may be held under a lease, which is measured by the store's clock. When the lease has
lapsed, the entry is absent for every method. A lapse is a change like a delete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Protocol

import msgspec

from umbel.errors import BadMessage, ConfigurationError
from umbel.messages import Envelope

PAUSES = "pauses/"
"""What must not start. Claims read these entries in their own step; see ``control.pauses``."""
LIMITS = "limits/"
"""Capacities that operators have set. Gates read these entries when a job passes."""
CANCELLATIONS = "cancellations/"
"""It has no entries. ``Control.cancel`` changes its revision when it asks workers to stop jobs."""
MAX_VALUE_BYTES = 65_536
MAX_KEY_BYTES = 2_048
"""Room for the longest name of a task or queue, 255 characters of four bytes."""
MAX_ENTRIES = 1_000
"""How many entries one ``commit`` may put and delete, and how many ``read`` returns at most."""


class Entry(msgspec.Struct, frozen=True):
    """An entry as it is stored."""

    key: str
    value: bytes
    revision: int
    """The commit that wrote it last."""
    left: float | None = None
    """Seconds until its lease lapses; None if it has no lease."""


class Put(msgspec.Struct, frozen=True):
    """An entry to write. With ``seconds`` it is under a lease of that length, otherwise under none.

    Raises:
        ConfigurationError: the key, the value or the lease cannot be stored.
    """

    key: str
    value: bytes = b""
    seconds: float | None = None

    def __post_init__(self) -> None:
        check_key(self.key)
        if len(self.value) > MAX_VALUE_BYTES:
            raise ConfigurationError(
                f"value of {self.key!r}: {len(self.value):,} bytes; at most {MAX_VALUE_BYTES:,}"
                " bytes are allowed, so divide it among several keys or store a reference"
            )
        check_seconds(self.seconds)


class Page(msgspec.Struct, frozen=True):
    """What ``read`` returns."""

    entries: tuple[Entry, ...]
    """In the order of their keys, compared by bytes."""
    revision: int
    """The revision of the prefix, for ``changed``; 0 if nothing was ever written there."""
    now: float
    """The store's time, in seconds since 1970."""
    more: bool = False
    """Whether there are entries after the last one. Read on with ``after`` set to its key."""


class Coordination(Protocol):
    """Stores entries. Every method is one atomic step. Only ``commit`` is not safe to repeat."""

    async def read(self, prefix: str, after: str = "", limit: int = MAX_ENTRIES) -> Page:
        """Return the entries whose keys begin with the prefix and come after the key ``after``.

        The entries and the revision are of the same moment.

        Raises:
            ConfigurationError: the prefix has no section.
            Unavailable: the caller should try again.
        """

    async def commit(
        self,
        checks: Mapping[str, int],
        puts: Sequence[Put] = (),
        deletes: Sequence[str] = (),
        publish: Sequence[Envelope] = (),
    ) -> int | None:
        """Write, delete and publish, all in one transaction, if every check holds.

        A check maps a key to the revision that its entry must have; 0 means that it must be absent.
        Returns the revision of the commit, or None if a check does not hold; then nothing has
        happened. Deleting an absent key is no error. An envelope whose id is known is not published
        again; one whose unique key is taken becomes a cancelled record.

        Repeating a commit after ``Unavailable`` is safe if its checks name what it changes: the
        second commit then returns None.

        Raises:
            ConfigurationError: a key is written twice, or there are too many entries.
            Unavailable: either all of it happened or none of it.
        """

    async def renew(self, held: Mapping[str, int], seconds: float) -> list[str]:
        """Let these leases lapse ``seconds`` from now; return the keys that are lost.

        ``held`` maps each key to its revision. An entry is lost if it is absent or was written by
        another commit since. This creates no revision and is no change.
        """

    async def changed(self, since: Mapping[str, int], wait: float) -> dict[str, int]:
        """Wait up to ``wait`` seconds until a prefix has another revision than the one given.

        Returns the prefixes that changed, with their present revisions; an empty mapping after
        ``wait`` seconds. Where the store can notify, it does; a slow poll remains. A lease that
        lapses ends the wait, too.
        """

    async def sweep(self, limit: int) -> int:
        """Delete lapsed entries, at most ``limit``; return how many."""

    async def close(self) -> None:
        """Free connections. Closing twice is fine."""


def section_of(prefix: str) -> str:
    """Return the section of a key or prefix, with its slash. Raise ConfigurationError."""
    section, slash, _ = prefix.partition("/")
    if not section or not slash:
        raise ConfigurationError(
            f"prefix {prefix!r}: it must begin with a section, as in 'pauses/'"
        )
    return section + slash


def check_prefix(prefix: str) -> str:
    """Return the section of a prefix. Raise ConfigurationError if no key can begin with it."""
    section = section_of(prefix)
    if prefix != section:
        check_key(prefix)
    return section


def check_key(key: str) -> str:
    """Return the key. Raise ConfigurationError if it cannot be stored."""
    if section_of(key) == key or "\0" in key:
        raise ConfigurationError(f"key {key!r}: it needs a name after its section, without NUL")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise ConfigurationError(f"key {key!r}: it cannot be written as UTF-8") from None
    if size > MAX_KEY_BYTES:
        raise ConfigurationError(f"key {key[:40]!r}…: at most {MAX_KEY_BYTES:,} bytes are allowed")
    return key


def check_seconds(seconds: float | None) -> None:
    """Raise ConfigurationError if a lease cannot have this length."""
    if seconds is not None and not 0 < seconds <= 10 * 366 * 86_400:
        raise ConfigurationError(
            f"seconds={seconds!r} of a lease: give more than 0, at most ten years"
        )


def check_commit(puts: Sequence[Put], deletes: Sequence[str]) -> None:
    """Raise ConfigurationError if a commit is ambiguous or too large."""
    keys = [*(put.key for put in puts), *map(check_key, deletes)]
    if len({*keys}) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ConfigurationError(f"key {twice!r} is written twice in one commit; write it once")
    if len(keys) > MAX_ENTRIES:
        raise ConfigurationError(
            f"{len(keys):,} entries in one commit: at most {MAX_ENTRIES:,} are allowed; divide it"
        )


def check_times(envelopes: Sequence[Envelope]) -> None:
    """Raise BadMessage if a time of an envelope is no number."""
    for envelope in envelopes:
        for field in ("delay", "expires_in", "not_before", "expires"):
            value = getattr(envelope, field)
            if value is not None and not isfinite(value):
                raise BadMessage(field, f"{value!r} is not a finite number of seconds")


def json_value(value: Any) -> bytes:
    """Return a value as JSON, as the values of Umbel's own entries are stored."""
    return msgspec.json.encode(value)
