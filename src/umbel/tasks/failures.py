"""Converts exceptions to data that can be stored, and back."""

from __future__ import annotations

import builtins
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec

from umbel.errors import JobFailed, NodeFailed, RemoteTraceback
from umbel.messages import Failure, not_finite
from umbel.urls import mask_secrets

_MESSAGE_LIMIT = 4_000
_TRACEBACK_LIMIT = 20_000
_PACKAGE_FOLDER = str(Path(__file__).parent.parent)


def describe(error: BaseException) -> Failure:
    """Return an exception as data. Never raises, whatever the exception's own methods do."""
    return Failure(
        type=_class_name(type(error)),
        message=_text(error)[:_MESSAGE_LIMIT],
        traceback=mask_secrets(_storable(_traceback(error)))[-_TRACEBACK_LIMIT:],
        args=_arguments(error),
    )


def rebuild(failure: Failure, job: str) -> Exception:
    """Return the exception to raise for a failed job, of its own class if that can be built here.

    Only classes of modules that are imported already are used: a record cannot make this process
    import anything.
    """
    error = _rebuild_own_class(failure)
    if error is None:
        kind = failure.type.rpartition(":")[2]
        text = failure.message if kind == NodeFailed.__name__ else failure.line
        if failure.node:
            error = NodeFailed(failure.node, failure.job, text, graph=job)
        else:
            error = JobFailed(f"job {job} failed with {text}")
    elif failure.node:
        error.add_note(f"In node {failure.node} of graph {job}; job {failure.job}")
    error.__cause__ = RemoteTraceback(failure.traceback)
    return error


def _rebuild_own_class(failure: Failure) -> Exception | None:
    module_name, _, name = failure.type.partition(":")
    module = builtins if module_name == "builtins" else sys.modules.get(module_name)
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)) or failure.args is None:
        return None
    try:
        error = kind(*msgspec.json.decode(failure.args))
        return error if _text(error)[:_MESSAGE_LIMIT] == failure.message else None
    except Exception:  # noqa: BLE001 - a constructor may raise anything; JobFailed is raised instead
        return None


def _class_name(kind: type[BaseException]) -> str:
    try:
        return _storable(f"{kind.__module__}:{kind.__qualname__}")
    except Exception:  # noqa: BLE001 - a metaclass may hide or break either
        return f"builtins:{type.__name__}"


def _storable(text: str) -> str:
    """Return text that every store accepts: no NUL, no lone surrogates."""
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()


def _text(error: BaseException) -> str:
    try:
        return _storable(str(error))
    except BaseException as broken:  # noqa: BLE001 - a user's __str__ may raise anything
        return f"<{type(error).__name__} whose text cannot be shown: {type(broken).__name__}>"


def _arguments(error: BaseException) -> str | None:
    try:
        values = _constructor_args(error)
        text = msgspec.json.encode(values).decode()
        if "null" in text and not_finite(values) is not None:
            return None
    except BaseException:  # noqa: BLE001 - arguments without a JSON form are left out
        return None
    return text if len(text) <= _MESSAGE_LIMIT else None


def _constructor_args(error: BaseException) -> tuple[Any, ...]:
    """Return the arguments that built the exception. OSError has its file names not in ``args``."""
    if isinstance(error, OSError) and error.filename is not None and len(error.args) == 2:
        return (*error.args, error.filename, None, error.filename2)
    return error.args


def _traceback(error: BaseException) -> str:
    """Return the traceback from the task's own code on, without Umbel's frames above it."""
    inner = error.__traceback__
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(_PACKAGE_FOLDER):
        inner = inner.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, inner))
    except BaseException as broken:  # noqa: BLE001 - formatting calls user code (__str__, __repr__)
        return f"<traceback cannot be shown: {type(broken).__name__}>"
