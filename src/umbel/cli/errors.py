"""Errors as people and programs read them, and the exit code of each."""

from __future__ import annotations

import io
import os
import sys
import threading
import traceback
from types import TracebackType
from typing import Any

import click
import msgspec

from umbel.errors import (
    BadArguments,
    ConfigurationError,
    DeploymentLost,
    DeploymentUnderWay,
    UmbelError,
    Unavailable,
)
from umbel.terminal import styled, visible_json, write
from umbel.urls import masked

FAILED = 1
USAGE = 2
UNREACHABLE = 3
NOT_YOURS = 4


class AppError(click.ClickException):
    """The application cannot be loaded. ``details`` is the user's own traceback, if any."""

    exit_code = USAGE

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class Failure(click.ClickException):
    """The command was understood and did not succeed."""

    exit_code = FAILED


def code_of(error: UmbelError) -> int:
    """The exit code for an error."""
    if isinstance(error, Unavailable):
        return UNREACHABLE
    if isinstance(error, DeploymentUnderWay | DeploymentLost):
        return NOT_YOURS
    return USAGE if isinstance(error, ConfigurationError | BadArguments) else FAILED


def tell(error: UmbelError, *, as_json: bool) -> int:
    """Print one of Umbel's own errors to stderr; returns the exit code."""
    code = code_of(error)
    _print(type(error).__name__, str(error), code, as_json)
    return code


def tell_failure(error: OSError, *, as_json: bool) -> None:
    """Print that the system refused something, such as writing to a full disk."""
    _print(type(error).__name__, error.strerror or str(error), FAILED, as_json)


def tell_usage(error: click.ClickException, *, as_json: bool) -> int:
    """Print what is wrong with a command to stderr; returns the exit code."""
    if isinstance(error, AppError | Failure):
        details = getattr(error, "details", "")
        kind = "AppError" if isinstance(error, AppError) else "Failed"
        _print(kind, error.message, error.exit_code, as_json, details)
    elif as_json:
        _print("Usage", error.format_message(), error.exit_code, as_json)
    else:
        told = io.StringIO()
        error.show(told)
        write(sys.stderr, masked(told.getvalue()), end="")
    return error.exit_code


def tell_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of an error that no command expects, as Python would."""
    write(sys.stderr, masked("".join(traceback.format_exception(kind, error, trace))), end="")


def tell_bug_of_thread(bug: threading.ExceptHookArgs) -> None:
    """The same for an error that ended a thread."""
    if bug.exc_value is not None and not isinstance(bug.exc_value, SystemExit):
        tell_bug(bug.exc_type, bug.exc_value, bug.exc_traceback)


def _print(kind: str, message: str, code: int, as_json: bool, details: str = "") -> None:
    message = masked(message.encode("utf-8", "backslashreplace").decode())
    details = masked(details.encode("utf-8", "backslashreplace").decode())
    if as_json:
        told: dict[str, Any] = {"type": kind, "message": message, "exit_code": code}
        if details:
            told["details"] = details
        write(sys.stderr, visible_json(msgspec.json.encode({"error": told}).decode()))
        return
    if details:
        write(sys.stderr, details.rstrip(), end="\n\n")
    write(sys.stderr, styled("error: ", "31") if _colour() else "error: ", message)


def _colour() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")
