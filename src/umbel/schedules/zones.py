"""The version of the time zone data that this process uses. Hosts may differ."""

from __future__ import annotations

import importlib
import zoneinfo
from contextlib import suppress
from functools import cache
from pathlib import Path

_FIRST_WORDS = "# version "
_MAX_LETTERS = 40


@cache
def zone_data_version() -> str:
    """Return a version such as ``2026a``; "" if it is unknown.

    ``zoneinfo`` reads the files of the host, and without them those of the package ``tzdata``.
    """
    for folder in zoneinfo.TZPATH:
        with suppress(OSError, UnicodeDecodeError):
            with Path(folder, "tzdata.zi").open(encoding="ascii") as file:
                line = file.readline(_MAX_LETTERS)
            if line.startswith(_FIRST_WORDS):
                return line.removeprefix(_FIRST_WORDS).strip()
    if any(Path(folder, "UTC").exists() for folder in zoneinfo.TZPATH):
        return ""
    with suppress(ImportError, AttributeError):
        return str(importlib.import_module("tzdata").IANA_VERSION)
    return ""
