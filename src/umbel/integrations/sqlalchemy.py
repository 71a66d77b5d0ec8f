"""SQLAlchemy's sessions around a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from umbel.errors import ConfigurationError
from umbel.tasks import Hook
from umbel.tasks.current import Job


class SqlalchemyHook(Hook):
    """Removes the sessions of these ``scoped_session`` objects after each run.

    So their connections go back to the pool, and no run sees data or an open transaction of another
    one. ``create_engine(..., pool_pre_ping=True)`` replaces connections that the server has closed.

    Raises:
        ConfigurationError: an argument is not a scoped_session.
    """

    def __init__(self, *sessions: Any) -> None:
        if not sessions or not all(hasattr(one, "remove") for one in sessions):
            raise ConfigurationError("SqlalchemyHook: give objects made by scoped_session(...)")
        self._sessions = sessions

    def around_run(self, job: Job) -> Iterator[None]:
        """Remove the sessions of this thread before and after the run."""
        self._remove()
        try:
            yield
        finally:
            self._remove()

    def _remove(self) -> None:
        for session in self._sessions:
            session.remove()
