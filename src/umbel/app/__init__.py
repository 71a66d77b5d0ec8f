"""Owns putting the parts together: settings in, a working application out.

Called by: user code, the command line, tests.
Never: passed down; no room below knows that an application exists.
"""

from umbel.app.umbel import Umbel

__all__ = ["Umbel"]
