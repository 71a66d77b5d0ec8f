"""Owns what users declare and hold: tasks, options, signatures, handles, sections, ``current``.

Called by: user code, the publisher (to build messages), the worker (to run them).
Never: knows a broker, a store or an app; it publishes through the two-method ``Outlet``.
"""

from umbel.tasks.current import Job, Place, Run, current, running
from umbel.tasks.gates import Gating, Limit, Pool, Rate
from umbel.tasks.handle import Handle, Jobs
from umbel.tasks.options import CallOptions, TaskOptions, Track
from umbel.tasks.policies import Retry, Unique
from umbel.tasks.registry import Registry
from umbel.tasks.sections import Section, optional, poisonous, retry
from umbel.tasks.snooze import Snooze
from umbel.tasks.steps import Step, StepCall, StepKeeper, StepPlace, entered, inside, step
from umbel.tasks.task import AS_DECLARED, Outlet, Signature, Task, task

__all__ = [
    "AS_DECLARED",
    "CallOptions",
    "Gating",
    "Handle",
    "Job",
    "Jobs",
    "Limit",
    "Outlet",
    "Place",
    "Pool",
    "Rate",
    "Registry",
    "Retry",
    "Run",
    "Section",
    "Signature",
    "Snooze",
    "Step",
    "StepCall",
    "StepKeeper",
    "StepPlace",
    "Task",
    "TaskOptions",
    "Track",
    "Unique",
    "current",
    "entered",
    "inside",
    "optional",
    "poisonous",
    "retry",
    "running",
    "step",
    "task",
]
