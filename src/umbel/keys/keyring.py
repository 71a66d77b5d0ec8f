"""Keys in a file: one that signs, and all that are trusted.

A key signs from one moment on and is trusted until another, so a new one can be made known to
everybody before the first message bears it, and an old one is trusted while its last ones travel.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from umbel.clock import Clock
from umbel.errors import ConfigurationError

_LOOK = 1.0
"""Seconds between looks at whether the file has changed."""


class Key(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pair of Ed25519 keys, or the public one alone."""

    public: bytes
    signs: datetime
    """From when on."""
    private: bytes | None = None
    until: datetime | None = None
    """How long it is trusted; None: until it is revoked."""

    @property
    def id(self) -> str:
        """What seals call it: it follows from the key, so that no two are called the same."""
        return hashlib.sha256(self.public).hexdigest()[:16]

    def sign(self, data: bytes) -> bytes:
        """Its signature below these bytes."""
        assert self.private is not None
        signature: bytes = _ed25519().Ed25519PrivateKey.from_private_bytes(self.private).sign(data)
        return signature

    def has_signed(self, signature: bytes, data: bytes) -> bool:
        """Whether the signature is this key's, below these very bytes."""
        library = _ed25519()
        from cryptography.exceptions import InvalidSignature

        try:
            library.Ed25519PublicKey.from_public_bytes(self.public).verify(signature, data)
        except InvalidSignature:
            return False
        return True


class Keyring(msgspec.Struct, frozen=True):
    """All keys that somebody has, the oldest first. Nothing changes in place."""

    keys: tuple[Key, ...] = ()

    def signer(self, now: datetime) -> Key | None:
        """The newest key that signs by now. None: nobody can sign with this ring."""
        able = [
            key
            for key in self.keys
            if key.private is not None and key.signs <= now and not _past(key, now)
        ]
        return max(able, key=lambda key: key.signs, default=None)

    def trusted(self, name: str, now: datetime) -> Key | None:
        """The key of that id, unless it is not to be trusted any more."""
        return next((key for key in self.keys if key.id == name and not _past(key, now)), None)

    def with_new(self, signs: datetime) -> Keyring:
        """With another key, which signs from then on."""
        private = _ed25519().Ed25519PrivateKey.generate()
        public = private.public_key().public_bytes_raw()
        key = Key(public=public, private=private.private_bytes_raw(), signs=signs)
        return Keyring((*self.keys, key))

    def rotated(self, now: datetime, after: timedelta, overlap: timedelta) -> Keyring:
        """With a new key that signs after a while; from then on older ones lapse."""
        end = now + after + overlap
        left = [
            replace(key, until=end if key.until is None else min(end, key.until))
            for key in self.keys
            if not _past(key, now)
        ]
        return Keyring(tuple(left)).with_new(now + after)

    def without(self, name: str) -> Keyring:
        """Without the key of that id."""
        return Keyring(tuple(key for key in self.keys if key.id != name))

    def public_only(self) -> Keyring:
        """With nothing in it that is secret: for whoever only checks."""
        return Keyring(tuple(replace(key, private=None) for key in self.keys))

    # --- in a file ---------------------------------------------------------------------------

    @classmethod
    def read(cls, path: Path) -> Keyring:
        """The keys in a file. Raises ConfigurationError: there is none, or it holds no keys."""
        try:
            found = msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise ConfigurationError(
                f"keys={str(path)!r}: {error.strerror}; make a file of keys: umbel keys make"
            ) from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"keys={str(path)!r}: no file of keys: {error}") from None
        for key in found.keys:
            if len(key.public) != 32 or (key.private is not None and len(key.private) != 32):
                raise ConfigurationError(f"keys={str(path)!r}: key {key.id} is no Ed25519 key")
            if key.signs.tzinfo is None or (key.until is not None and key.until.tzinfo is None):
                raise ConfigurationError(f"keys={str(path)!r}: key {key.id} has times without zone")
        return found

    def write(self, path: Path, *, new: bool = False) -> None:
        """Into a file that only its owner reads: all of it, or what was there stays.

        A file that is replaced keeps its mode and its owner. Folders that are missing are created
        for the owner alone: in one that others can write to they could put keys of their own.

        Raises:
            FileExistsError: there is one, and it was to be new.
        """
        import tempfile  # loads much, and few write keys

        text = msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"
        _create_folder(path.parent)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                _set_mode(file.fileno(), path)
            if new:
                os.link(name, path)
            else:
                os.replace(name, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)


def _create_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _create_folder(folder.parent)
    with suppress(FileExistsError):  # another process was faster
        folder.mkdir(mode=0o700)
        folder.chmod(0o700)  # the umask may have taken something away


def _set_mode(file: int, replaced: Path) -> None:
    os.fchmod(file, 0o600)  # the umask may have taken something away
    with suppress(FileNotFoundError, PermissionError):
        found = replaced.stat()
        os.fchown(file, found.st_uid, found.st_gid)
        os.fchmod(file, stat.S_IMODE(found.st_mode))


class KeyFile:
    """A file of keys that is read again when it has changed: keys rotate under running workers."""

    def __init__(
        self, path: Path, clock: Clock, trouble: Callable[[str], None] = lambda error: None
    ) -> None:
        self.path = path
        self._clock = clock
        self._trouble = trouble
        self._ring: Keyring | None = None
        self._seen: tuple[int, ...] = ()
        self._looked = 0.0

    def check(self) -> None:
        """Raises ConfigurationError: the file cannot be read, or signatures not be checked."""
        _ed25519()
        self.ring  # noqa: B018 - read now, not with the first message

    @property
    def ring(self) -> Keyring:
        """The keys as they are now. Raises ConfigurationError when they never could be read.

        A file that can be read no more, half copied perhaps, is told of, and its keys stay.
        """
        moment = self._clock.monotonic()
        if self._ring is not None and moment - self._looked < _LOOK:
            return self._ring
        self._looked, seen = moment, self._state()
        if self._ring is None or seen != self._seen:
            try:
                self._ring = Keyring.read(self.path)
            except ConfigurationError as error:
                if self._ring is None:
                    raise
                self._trouble(str(error))
            self._seen = seen
        return self._ring

    def _state(self) -> tuple[int, ...]:
        try:
            found = self.path.stat()
        except OSError:
            return ()
        return (found.st_mtime_ns, found.st_size, found.st_ino)


def moment(seconds: float) -> datetime:
    """A time of the clock's as keys have it."""
    return datetime.fromtimestamp(seconds, UTC)


def _past(key: Key, now: datetime) -> bool:
    return key.until is not None and key.until <= now


def _ed25519() -> Any:
    """The library's part for these keys, loaded when the first is used."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise ConfigurationError(
            "signed messages need cryptography: pip install 'umbel[signing]'"
        ) from None
    return ed25519
