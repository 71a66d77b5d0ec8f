"""The event loop of a process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def loop_factory(use_uvloop: bool) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory if it is wanted and installed; None stands for asyncio's own."""
    if use_uvloop:
        try:
            import uvloop
        except ImportError:
            return None
        return uvloop.new_event_loop
    return None
