"""Owns where an application's settings come from: arguments, then environment, then defaults.

Called by: the composition root and the command line.
Never: read at import; never reaches into another room.
"""

from umbel.configuration.settings import DEFAULT_URL, Settings

__all__ = ["DEFAULT_URL", "Settings"]
