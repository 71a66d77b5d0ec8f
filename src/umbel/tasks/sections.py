"""Sections: parts of a task whose failures are handled in their own way.

A section does not catch an error. It marks the error, and the worker decides by the mark. So the
task ends where it failed and frees its slot; if it is retried, it runs again from the start.
"""

from __future__ import annotations

import sys
from types import TracebackType

import msgspec

from umbel.errors import ConfigurationError
from umbel.tasks.current import running
from umbel.tasks.policies import Retry

_LOG = "umbel.sections"


class Section(msgspec.Struct, frozen=True):
    """The mark that a section leaves on an error. Without a policy the error is final."""

    name: str
    policy: Retry | None


class _Marking:
    """A context manager that marks errors passing through it."""

    def __init__(self, section: Section) -> None:
        self._section = section

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        run = running.get()
        # A cancellation or a request to exit is not a failure of the section.
        if run is not None and isinstance(error, Exception):
            run.mark(error, self._section)


def retry(
    times: int = 5,
    *,
    name: str | None = None,
    first: float = 1.0,
    factor: float = 2.0,
    cap: float = 300.0,
    on: type[Exception] | tuple[type[Exception], ...] = Exception,
) -> _Marking:
    """Return a section with its own retry policy and its own counter, apart from the task's.

    ``name`` identifies the section across runs; it defaults to function and line.
    """
    policy = Retry(times, first=first, factor=factor, cap=cap, on=on)
    return _Marking(Section(name or _caller(), policy))


def poisonous() -> _Marking:
    """Return a section in which an error is final: a retry would fail again."""
    return _Marking(Section("poisonous", None))


class optional:  # noqa: N801 - reads as a statement: ``with optional(KeyError):``
    """A section whose error is logged and ignored; the task goes on after it."""

    def __init__(self, *errors: type[Exception]) -> None:
        if not all(isinstance(e, type) and issubclass(e, Exception) for e in errors):
            raise ConfigurationError("optional(...): give exception classes, or nothing for all")
        self._errors = errors or (Exception,)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if not isinstance(error, self._errors):
            return False
        import logging  # imported only when a section fails

        logging.getLogger(_LOG).warning("optional section failed and was skipped", exc_info=error)
        return True


def _caller() -> str:
    frame = sys._getframe(2)
    return f"{frame.f_code.co_qualname}:{frame.f_lineno}"
