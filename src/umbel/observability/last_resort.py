"""Log records in a command that has no log: warnings of libraries are shown on stderr."""

from __future__ import annotations

import logging
import sys

from umbel.terminal import write
from umbel.urls import mask_secrets


class LastResort(logging.Handler):
    """Replaces the standard library's handler, which neither masks secrets nor escapes text."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            write(sys.stderr, mask_secrets(self.format(record)))
            sys.stderr.flush()
        except Exception:  # noqa: BLE001 - logging must not break its caller
            pass


def configure_last_resort() -> None:
    """Show warnings and errors for which no handler is set."""
    logging.lastResort = LastResort(logging.WARNING)
