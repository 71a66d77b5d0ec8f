"""Owns the command line: arguments in; tables, JSON and an exit code out.

Called by: operators, scripts and supervisors, as ``umbel`` or ``python -m umbel``.
Never: decides anything; each command calls the application, its operations or a process.
"""

from umbel.cli.entry import main

__all__ = ["main"]
