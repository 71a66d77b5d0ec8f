"""Owns composition: builds a working application from settings.

Called by: user code, the command line, tests.
Never: passed down. No package below knows that an application exists.
"""

from umbel.app.umbel import Umbel

__all__ = ["Umbel"]
