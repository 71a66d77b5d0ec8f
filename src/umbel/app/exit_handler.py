"""Publishes backlogs in memory when the process exits.

Exit handlers run in reverse order of registration. This one is registered when this module is
imported, so handlers that an application registers later can still publish as usual. Messages from
handlers that run after this one are sent directly, put into a durable backlog, or reported as lost:
see ``Forwarder.close``.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - drivers use it, and it cannot be imported during exit
import os
import sys
import weakref

from umbel.publisher import Forwarder

_forwarders: weakref.WeakKeyDictionary[Forwarder, tuple[int, float]] = weakref.WeakKeyDictionary()
"""For each forwarder, the process that created it and how many seconds closing may take."""
_registered_in = 0
"""The process in which the exit handler is registered."""
_exiting = False


def close_at_exit(forwarder: Forwarder, timeout: float) -> None:
    """Close a forwarder when this process exits, but not when a forked child does."""
    _forwarders[forwarder] = (os.getpid(), timeout)
    _register()
    if _exiting:
        forwarder.close(0.0)


def _register() -> None:
    global _registered_in
    if _registered_in == os.getpid():
        return
    _registered_in = os.getpid()
    atexit.register(_close_all)
    # A child that multiprocessing forks runs only the exit handlers of multiprocessing.
    children = sys.modules.get("multiprocessing.process")
    if children is not None and children.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _close_all, exitpriority=0)


def _close_all() -> None:
    global _exiting
    _exiting = True
    for forwarder, (process, timeout) in list(_forwarders.items()):
        if process == os.getpid():
            forwarder.close(timeout)


_register()
