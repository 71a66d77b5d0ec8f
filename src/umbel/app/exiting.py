"""What happens to kept messages when the process exits.

Exit handlers run in reverse order of registration. Ours is registered when this module is imported,
so handlers that an application registers later still publish as usual. Messages of handlers that
run after ours are sent at once, kept durably, or reported as lost: see ``Forwarder.close``.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - drivers use it; too late during exit
import os
import sys
import weakref

from umbel.publisher import Forwarder

_forwarders: weakref.WeakKeyDictionary[Forwarder, tuple[int, float]] = weakref.WeakKeyDictionary()
"""The process that made each of them, and how many seconds its end may take."""
_registered_in = 0
_exiting = False


def close_at_exit(forwarder: Forwarder, timeout: float) -> None:
    """Close it when this process exits, and not when a forked child does."""
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
    # Children that multiprocessing forks start without exit handlers, and run only its own.
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
