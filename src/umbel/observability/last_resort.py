"""Log records of a command that writes no log: warnings of libraries, shown on stderr."""

from __future__ import annotations

import logging
import sys

from umbel.terminal import write
from umbel.urls import masked


class LastResort(logging.Handler):
    """Takes the place of the standard library's own, which writes whatever a record says."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            write(sys.stderr, masked(self.format(record)))
            sys.stderr.flush()
        except Exception:  # noqa: BLE001 - a record must not break what it tells of
            pass


def configure_last_resort() -> None:
    """Show records that no handler takes, from warnings on."""
    logging.lastResort = LastResort(logging.WARNING)
