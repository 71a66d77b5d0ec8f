"""Django's database connections around a run."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from umbel.errors import ConfigurationError
from umbel.tasks import Hook
from umbel.tasks.current import Job


class DjangoHook(Hook):
    """Closes broken and too old connections before and after a run, as Django does for a request.

    Without it, a worker uses a connection for as long as it runs, and its tasks fail after the
    database was restarted. Settings such as ``CONN_MAX_AGE`` apply.

    Raises:
        ConfigurationError: Django is not installed.
    """

    def __init__(self) -> None:
        try:
            self._db: Any = import_module("django.db")
        except ImportError:
            raise ConfigurationError("DjangoHook: pip install django") from None

    def around_run(self, job: Job) -> Iterator[None]:
        """Do what Django does at the start and at the end of a request."""
        self._db.reset_queries()
        self._db.close_old_connections()
        try:
            yield
        finally:
            self._db.close_old_connections()
