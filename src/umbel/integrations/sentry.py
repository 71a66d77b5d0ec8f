"""Errors of tasks, reported to Sentry."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from umbel.errors import ConfigurationError
from umbel.tasks import Hook
from umbel.tasks.current import Job


class SentryHook(Hook):
    """Reports what a task raises, with the job as context. Call ``sentry_sdk.init`` before.

    Every failed attempt is reported; Sentry groups them. What a task raises to be run later, such
    as ``Snooze``, and a stop by a shutdown or a cancellation are no errors.

    Raises:
        ConfigurationError: sentry-sdk is not installed.
    """

    def __init__(self) -> None:
        try:
            self._sentry: Any = import_module("sentry_sdk")
        except ImportError:
            raise ConfigurationError("SentryHook: pip install sentry-sdk") from None

    def around_run(self, job: Job) -> Iterator[None]:
        """Run in a scope of its own."""
        with self._sentry.isolation_scope() as scope:
            scope.set_transaction_name(job.task)
            scope.set_tag("umbel.task", job.task)
            scope.set_tag("umbel.queue", job.queue)
            scope.set_context("umbel", {"job": job.id, "attempt": job.attempt})
            try:
                yield
            except Exception as error:
                if not type(error).__module__.startswith("umbel."):
                    self._sentry.capture_exception(error)
                raise
