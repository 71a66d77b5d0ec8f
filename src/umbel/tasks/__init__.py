"""Owns what users declare and use: tasks, options, signatures, handles, sections, ``current``.

Called by: user code, the publisher (to build messages), the worker (to run them).
Never: knows a broker, a store or an app. It publishes through ``Sender``, a port.
"""

from umbel.tasks.canvas import chain, chord, chunks, fork, group
from umbel.tasks.current import CurrentWorker, Job, Run, current, running
from umbel.tasks.gates import GateSet, Limit, Pool, Rate
from umbel.tasks.handle import Handle, Jobs
from umbel.tasks.hooks import Hook, Hooks
from umbel.tasks.options import CallOptions, TaskOptions, Track
from umbel.tasks.policies import Retry, Unique
from umbel.tasks.registry import Registry
from umbel.tasks.retry_after import RetryAfter
from umbel.tasks.sections import Section, optional, poisonous, retry
from umbel.tasks.snooze import Snooze
from umbel.tasks.steps import (
    Step,
    StepCall,
    StepPosition,
    StepRunner,
    current_step,
    enter_step,
    step,
)
from umbel.tasks.task import AS_DECLARED, Sender, Signature, Task, task

__all__ = [
    "AS_DECLARED",
    "CallOptions",
    "CurrentWorker",
    "GateSet",
    "Handle",
    "Hook",
    "Hooks",
    "Job",
    "Jobs",
    "Limit",
    "Pool",
    "Rate",
    "Registry",
    "Retry",
    "RetryAfter",
    "Run",
    "Section",
    "Sender",
    "Signature",
    "Snooze",
    "Step",
    "StepCall",
    "StepPosition",
    "StepRunner",
    "Task",
    "TaskOptions",
    "Track",
    "Unique",
    "chain",
    "chord",
    "chunks",
    "current",
    "current_step",
    "enter_step",
    "fork",
    "group",
    "optional",
    "poisonous",
    "retry",
    "running",
    "step",
    "task",
]
