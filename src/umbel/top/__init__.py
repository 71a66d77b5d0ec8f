"""Owns ``umbel top``: a live view of the store in a terminal, with keys that act.

Called by: ``umbel top``.
Never: reads or changes anything except through ``Operations``, and needs no mouse and no colours.
"""

from umbel.top.drawing import Frame, draw
from umbel.top.glyphs import Glyphs
from umbel.top.reading import Snapshot, Wanted, read_snapshot
from umbel.top.screen import Screen
from umbel.top.session import run_top

__all__ = ["Frame", "Glyphs", "Screen", "Snapshot", "Wanted", "draw", "read_snapshot", "run_top"]
