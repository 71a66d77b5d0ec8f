"""Owns what is remembered: records, the worker registry, control state. One narrow port a role.

Called by: the router, the worker's heartbeat, operations, handles.
Never: moves messages or decides anything; each role states what holds after a crash.
"""

from umbel.stores.control import Control, ControlState, Pause
from umbel.stores.records import UNCHANGED, Changes, JobFilter, ProgressNote, Records
from umbel.stores.registry import Member, Registry, WorkerEntry

__all__ = [
    "UNCHANGED",
    "Changes",
    "Control",
    "ControlState",
    "JobFilter",
    "Member",
    "Pause",
    "ProgressNote",
    "Records",
    "Registry",
    "WorkerEntry",
]
