"""A file of keys: one that signs, and all that are trusted.

A key signs from one time on and is trusted until another. So a new key can be distributed before
the first message is signed with it, and an old key is trusted until its last messages have arrived.
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

_CHECK_INTERVAL = 1.0
"""Seconds between checks whether the file has changed."""


class Key(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An Ed25519 key pair, or only its public key."""

    public: bytes
    signs: datetime
    """The time from which it signs."""
    private: bytes | None = None
    until: datetime | None = None
    """The time until which it is trusted; None: until it is revoked."""

    @property
    def id(self) -> str:
        """Its id in signatures: a hash of the public key."""
        return hashlib.sha256(self.public).hexdigest()[:16]

    def sign(self, data: bytes) -> bytes:
        """Return its signature of the data."""
        assert self.private is not None
        signature: bytes = _ed25519().Ed25519PrivateKey.from_private_bytes(self.private).sign(data)
        return signature

    def has_signed(self, signature: bytes, data: bytes) -> bool:
        """Whether the signature is this key's signature of the data."""
        library = _ed25519()
        from cryptography.exceptions import InvalidSignature

        try:
            library.Ed25519PublicKey.from_public_bytes(self.public).verify(signature, data)
        except InvalidSignature:
            return False
        return True


class Keyring(msgspec.Struct, frozen=True):
    """A set of keys, oldest first. Immutable."""

    keys: tuple[Key, ...] = ()

    def signer(self, now: datetime) -> Key | None:
        """Return the newest key that signs now; None if no key of this ring can sign."""
        able = [
            key
            for key in reversed(self.keys)  # of two with the same time, the one added last
            if key.private is not None and key.signs <= now and not _is_expired(key, now)
        ]
        return max(able, key=lambda key: key.signs, default=None)

    def trusted(self, name: str, now: datetime) -> Key | None:
        """Return the key of that id, if it is still trusted."""
        return next(
            (key for key in self.keys if key.id == name and not _is_expired(key, now)), None
        )

    def with_new(self, signs: datetime) -> Keyring:
        """Return the ring with a new key, which signs from that time on."""
        private = _ed25519().Ed25519PrivateKey.generate()
        public = private.public_key().public_bytes_raw()
        key = Key(public=public, private=private.private_bytes_raw(), signs=signs)
        return Keyring((*self.keys, key))

    def rotated(self, now: datetime, after: timedelta, overlap: timedelta) -> Keyring:
        """Return the ring with a new key that signs after a while; older keys expire later."""
        end = now + after + overlap
        left = [
            replace(key, until=end if key.until is None else min(end, key.until))
            for key in self.keys
            if not _is_expired(key, now)
        ]
        return Keyring(tuple(left)).with_new(now + after)

    def without(self, name: str) -> Keyring:
        """Return the ring without the key of that id."""
        return Keyring(tuple(key for key in self.keys if key.id != name))

    def public_only(self) -> Keyring:
        """Return the ring without private keys, for processes that only verify."""
        return Keyring(tuple(replace(key, private=None) for key in self.keys))

    # --- in a file ---------------------------------------------------------------------------

    @classmethod
    def read(cls, path: Path) -> Keyring:
        """Read a file. Raise ConfigurationError if it does not exist or is not a file of keys."""
        try:
            found = msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise ConfigurationError(
                f"keys={str(path)!r}: {error.strerror}; create a file of keys: umbel keys make"
            ) from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"keys={str(path)!r}: not a file of keys: {error}") from None
        for key in found.keys:
            if len(key.public) != 32 or (key.private is not None and len(key.private) != 32):
                raise ConfigurationError(f"keys={str(path)!r}: key {key.id} is not an Ed25519 key")
            if key.signs.tzinfo is None or (key.until is not None and key.until.tzinfo is None):
                raise ConfigurationError(
                    f"keys={str(path)!r}: key {key.id} has times without a time zone"
                )
        return found

    def write(self, path: Path, *, new: bool = False) -> None:
        """Write a file that only its owner can read, atomically.

        A replaced file keeps its mode and owner. Missing folders are created for the owner alone:
        in a folder that others can write to, they could replace the keys.

        Raises:
            FileExistsError: ``new`` is given and the file exists.
        """
        import tempfile  # a slow import that few processes need

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
    with suppress(FileExistsError):  # another process has created it
        folder.mkdir(mode=0o700)
        folder.chmod(0o700)  # the umask may have removed permissions


def _set_mode(file: int, replaced: Path) -> None:
    os.fchmod(file, 0o600)  # the umask may have removed permissions
    with suppress(FileNotFoundError, PermissionError):
        found = replaced.stat()
        os.fchown(file, found.st_uid, found.st_gid)
        os.fchmod(file, stat.S_IMODE(found.st_mode))


class KeyFile:
    """A file of keys that is read again when it has changed, so that keys can be rotated."""

    def __init__(
        self, path: Path, clock: Clock, on_error: Callable[[str], None] = lambda error: None
    ) -> None:
        self.path = path
        self._clock = clock
        self._on_error = on_error
        self._ring: Keyring | None = None
        self._file_state: tuple[int, ...] = ()
        self._checked_at = 0.0

    def open(self) -> bool:
        """Return whether messages are signed and verified with these keys.

        Raises:
            ConfigurationError: the file is unusable, or the signing library is missing.
        """
        _ed25519()
        self.ring  # noqa: B018 - read now, not with the first message
        return True

    @property
    def ring(self) -> Keyring:
        """The present keys. Raise ConfigurationError if they could never be read.

        If the file has become unreadable, perhaps because it is being copied, the error is reported
        and the keys stay as they were.
        """
        now = self._clock.monotonic()
        if self._ring is not None and now - self._checked_at < _CHECK_INTERVAL:
            return self._ring
        self._checked_at, state = now, self._read_state()
        if self._ring is None or state != self._file_state:
            try:
                self._ring = Keyring.read(self.path)
            except ConfigurationError as error:
                if self._ring is None:
                    raise
                self._on_error(str(error))
            self._file_state = state
        return self._ring

    def _read_state(self) -> tuple[int, ...]:
        try:
            found = self.path.stat()
        except OSError:
            return ()
        return (found.st_mtime_ns, found.st_size, found.st_ino)


def to_datetime(seconds: float) -> datetime:
    """Return seconds since 1970 as a datetime in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def _is_expired(key: Key, now: datetime) -> bool:
    return key.until is not None and key.until <= now


def _ed25519() -> Any:
    """Import the cryptography library, when the first key is used."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise ConfigurationError(
            "signed messages need cryptography: pip install 'umbel[signing]'"
        ) from None
    return ed25519
