"""Prints errors for operators and programs, and knows the exit code of each."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from types import TracebackType
from typing import Any

import click

from umbel.errors import (
    BadArguments,
    ConfigurationError,
    DeploymentLost,
    DeploymentUnderWay,
    UmbelError,
    Unavailable,
)
from umbel.processes.exit_codes import FAILED, OTHER_DEPLOYMENT, UNREACHABLE, USAGE
from umbel.terminal import add_style, make_json_visible, write
from umbel.urls import mask_secrets

_HELP = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""A group without a command, for which click 8.2 and later raise the help as an error."""


class Failure(click.ClickException):
    """The command was understood and did not succeed."""

    exit_code = FAILED


def exit_code(error: UmbelError) -> int:
    """Return the exit code for an error."""
    if isinstance(error, Unavailable):
        return UNREACHABLE
    if isinstance(error, DeploymentUnderWay | DeploymentLost):
        return OTHER_DEPLOYMENT
    return USAGE if isinstance(error, ConfigurationError | BadArguments) else FAILED


def report_error(error: UmbelError, *, as_json: bool) -> int:
    """Print one of Umbel's own errors to stderr; return the exit code."""
    code = exit_code(error)
    _print(type(error).__name__, str(error), code, as_json, getattr(error, "details", ""))
    return code


def report_os_error(error: OSError, *, as_json: bool) -> None:
    """Print an error of the operating system, such as a full disk."""
    _print(type(error).__name__, error.strerror or str(error), FAILED, as_json)


def report_usage_error(error: click.ClickException, *, as_json: bool) -> int:
    """Print to stderr what is wrong with a command; return the exit code."""
    if isinstance(error, Failure):
        _print("Failed", error.message, error.exit_code, as_json)
    elif isinstance(error, _HELP) and not as_json:
        write(sys.stderr, error.format_message())
    else:
        _print("Usage", _in_our_style(error.format_message()), error.exit_code, as_json)
        context = getattr(error, "ctx", None)
        if context is not None and not as_json:
            write(sys.stderr, f"Try: {context.command_path} --help")
    return error.exit_code


def _in_our_style(message: str) -> str:
    """Return a message of click like the messages of Umbel: without a capital and a full stop."""
    if message[:1].isupper() and message[1:2].islower():
        message = message[0].lower() + message[1:]
    return message.removesuffix(".")


def report_bug(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print the traceback of an error that no command expects, as Python would."""
    write(sys.stderr, mask_secrets("".join(traceback.format_exception(kind, error, trace))), end="")


def report_thread_bug(bug: threading.ExceptHookArgs) -> None:
    """Print the traceback of an error that ended a thread."""
    if bug.exc_value is not None and not isinstance(bug.exc_value, SystemExit):
        report_bug(bug.exc_type, bug.exc_value, bug.exc_traceback)


def _print(kind: str, message: str, code: int, as_json: bool, details: str = "") -> None:
    message = mask_secrets(message.encode("utf-8", "backslashreplace").decode())
    details = mask_secrets(details.encode("utf-8", "backslashreplace").decode())
    if as_json:
        import msgspec

        document: dict[str, Any] = {"type": kind, "message": message, "exit_code": code}
        if details:
            document["details"] = details
        write(sys.stderr, make_json_visible(msgspec.json.encode({"error": document}).decode()))
        return
    if details:
        write(sys.stderr, details.rstrip(), end="\n\n")
    write(sys.stderr, add_style("error: ", "31") if _uses_color() else "error: ", message)


def _uses_color() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")
