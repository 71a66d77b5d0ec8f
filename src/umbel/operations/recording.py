"""Which operations change something, and how the audit log names them.

The command line records them. The dashboard and ``umbel top`` record what their users do.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from functools import wraps
from typing import Any

import msgspec

from umbel.control import AuditLog, Resumed
from umbel.messages import State
from umbel.operations.erasing import ErasedJobs
from umbel.operations.operations import Operations

_MAX_NAMES = 20

CHANGES: dict[str, tuple[str, ...]] = {
    "cancel": ("cancel", "jobs"),
    "cancel_possible": ("cancel", "jobs"),
    "retry": ("retry", "jobs"),
    "retry_possible": ("retry", "jobs"),
    "forget": ("delete-jobs", "wanted"),
    "forget_possible": ("delete-jobs", "jobs"),
    "erase_jobs": ("delete-jobs", "search"),
    "purge": ("purge", "queue"),
    "move": ("move", "source", "target"),
    "override_capacity": ("set-limit", "rule"),
    "override_rates": ("set-rate", "rule"),
    "add_members": ("add-members", "pool", "members"),
    "remove_members": ("remove-members", "pool", "names"),
    "drain": ("drain", "pool", "names"),
    "ready": ("ready", "pool", "names"),
    "release": ("release", "key"),
    "move_route": ("move-route", "key", "index"),
    "retire": ("retire", "index", "retiring"),
    "pause": ("pause", "scope", "name"),
    "resume": ("resume", "scope", "name"),
    "graphs.signal": ("signal", "graph", "name"),
    "graphs.cancel": ("cancel-graph", "graph"),
    "graphs.retry": ("retry-graph", "graph_id"),
    "graphs.retry_jobs": ("retry-graph", "graph_id", "jobs"),
    "graphs.resolve": ("resolve-node", "graph_id", "name"),
    "schedules.add": ("add-schedule", "name"),
    "schedules.edit": ("edit-schedule", "name"),
    "schedules.pause": ("pause-schedule", "name"),
    "schedules.resume": ("resume-schedule", "name"),
    "schedules.trigger": ("trigger", "name"),
    "schedules.remove": ("remove-schedule", "name"),
    "deploy.begin": ("begin-deployment", "plan"),
    "deploy.end": ("end-deployment",),
    "deploy.abort": ("end-deployment", "deployment"),
    "access.set_user": ("set-user", "name", "role"),
    "access.remove_user": ("remove-user", "name"),
    "access.add_token": ("add-token", "name", "role"),
    "access.remove_token": ("remove-token", "name"),
    "saved_views.save": ("save-view", "name"),
    "saved_views.remove": ("remove-view", "name"),
}
"""For each operation that changes something: its action, and the parameters that name its object.

``erase`` is not one of them: it deletes the log, too. Other parameters may be secret.
"""

_SAYS_NOTHING = {
    *("add_members", "retire", "graphs.signal", "schedules.remove", "access.set_user"),
    "saved_views.save",
}
"""Operations whose result does not say whether they have changed something."""

_is_recorded: ContextVar[bool] = ContextVar("_is_recorded", default=False)
"""Whether this runs inside an operation that is recorded already."""


def record_changes(operations: Operations, user: str, address: str) -> None:
    """From now on, record each change that is made with these operations in the audit log."""
    for path, (action, *parameters) in CHANGES.items():
        part, _, name = path.rpartition(".")
        owner = getattr(operations, part) if part else operations
        method = getattr(owner, name)
        line = {"user": user, "address": address, "action": action}
        says_nothing = path in _SAYS_NOTHING
        setattr(owner, name, _recorded(method, operations.audit, line, parameters, says_nothing))


def _recorded(
    method: Callable[..., Awaitable[Any]],
    audit: AuditLog,
    line: Mapping[str, str],
    parameters: list[str],
    says_nothing: bool,
) -> Callable[..., Awaitable[Any]]:
    signature = inspect.signature(method)

    @wraps(method)
    async def call(*args: Any, **kwargs: Any) -> Any:
        if _is_recorded.get():
            return await method(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        texts = [_text(name, given.arguments[name]) for name in parameters]
        subject = " ".join(filter(None, texts))
        reason = str(given.arguments.get("reason", given.arguments.get("why", "")))
        before = _is_recorded.set(True)
        try:
            async with audit.recorded(**line, subject=subject, reason=reason) as outcome:
                result = await method(*args, **kwargs)
                if not says_nothing and not _has_changed(result):
                    outcome.text = "nothing was changed"
                return result
        finally:
            _is_recorded.reset(before)

    return call


def _has_changed(result: Any) -> bool:
    """Return whether an operation has changed something, by its result."""
    match result:
        case ErasedJobs():
            return bool(result.deleted or result.stopping)
        case Resumed():
            return result.existed
        case dict():  # the states of jobs after a cancellation
            return not {State.CANCELLED, State.RUNNING}.isdisjoint(result.values())
        case _:
            return bool(result)


def _text(name: str, value: Any) -> str:
    """Return what an argument of an operation is called in the audit log."""
    if isinstance(value, bool):
        return f"{name}={value}"
    if isinstance(value, msgspec.Struct):
        given = [(f.name, getattr(value, f.name), f.default) for f in msgspec.structs.fields(value)]
        return ", ".join(f"{f}={_text(f, one)}" for f, one, default in given if one != default)
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        names = [str(one) for one in value]
        more = len(names) - _MAX_NAMES
        return ", ".join(names[:_MAX_NAMES]) + (f" and {more:,} more" if more > 0 else "")
    return str(value)
