"""The key of a user, for processes of one machine: made on first use, without any setup."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from umbel.clock import Clock
from umbel.keys.keyring import KeyFile, Keyring, to_datetime

_FILE = Path("umbel", "user.keys")


def user_key_path(environment: Mapping[str, str]) -> Path:
    """Return the file of the user's key, in the user's data folder.

    That is XDG_DATA_HOME, or ``~/.local/share`` if it is not set to an absolute path. The path is
    relative if the user has no home folder.
    """
    given = Path(environment.get("XDG_DATA_HOME", ""))
    folder = given if given.is_absolute() else Path(os.path.expanduser("~/.local/share"))
    return folder / _FILE


class UserKeyFile(KeyFile):
    """A file of keys that is created on first use. If that fails, messages are not signed."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        on_error: Callable[[str], None],
        on_missing_library: Callable[[], None],
        on_unusable: Callable[[str], None],
    ) -> None:
        super().__init__(path, clock, on_error)
        self._on_missing_library = on_missing_library
        self._on_unusable = on_unusable
        self._is_open: bool | None = None

    def open(self) -> bool:
        """Create the file if it does not exist. Return False and report it once if that fails.

        Raises:
            ConfigurationError: the file exists and is not a file of keys.
        """
        if self._is_open is None:
            self._is_open = self._open()
        return self._is_open

    def _open(self) -> bool:
        # The library itself is loaded with the first message: most workers never receive one.
        if importlib.util.find_spec("cryptography") is None:
            self._on_missing_library()
            return False
        if not self.path.is_absolute():
            self._on_unusable("the user has no home folder")
            return False
        try:
            if not self.path.exists():
                self._create()
            self.path.read_bytes()
        except OSError as error:
            self._on_unusable(f"{self.path}: {error.strerror}")
            return False
        self.ring  # noqa: B018 - read now, not with the first message
        return True

    def _create(self) -> None:
        """Create the file, unless another process creates it at the same time.

        The key signs from 1970 on: it is the only one, and the clock may be put back.
        """
        ring = Keyring().with_new(to_datetime(0))
        with suppress(FileExistsError):
            ring.write(self.path, new=True)
