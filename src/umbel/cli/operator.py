"""Who runs a command, as other operators see it."""

from __future__ import annotations

import getpass
import os


def operator_name() -> str:
    """Return the name of the user who runs the command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in a container
        return f"user {os.getuid()}"
