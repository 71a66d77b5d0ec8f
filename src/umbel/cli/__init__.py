"""Owns the command line: words in, tables or JSON out, an exit code.

Called by: people, scripts and supervisors, as ``umbel`` or ``python -m umbel``.
Never: decides anything; each command is a skin on the application or its operations.
"""

from umbel.cli.entry import main

__all__ = ["main"]
