"""Context variables that a task sees as the code that published its job saw them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import msgspec

from umbel.errors import ConfigurationError
from umbel.tasks import Hook
from umbel.tasks.current import Job
from umbel.tasks.hooks import OutgoingJob

_HEADER = "context"


class ContextHook(Hook):
    """Carries these variables from publishers to tasks: ``app.use(ContextHook(tenant, locale))``.

    Their values must be representable as JSON. A variable that has no value is not carried. Jobs
    that a task publishes get the values that the task sees.

    Raises:
        ConfigurationError: no variable is given, or two have the same name.
    """

    def __init__(self, *variables: ContextVar[Any]) -> None:
        self._variables = {variable.name: variable for variable in variables}
        if not variables or len(self._variables) < len(variables):
            raise ConfigurationError("ContextHook: give context variables with different names")

    def on_publish(self, job: OutgoingJob) -> Mapping[str, str]:
        """Return the header with their values."""
        values = {
            name: value
            for name, variable in self._variables.items()
            if (value := variable.get(msgspec.UNSET)) is not msgspec.UNSET
        }
        return {_HEADER: msgspec.json.encode(values).decode()} if values else {}

    def around_run(self, job: Job) -> Iterator[None]:
        """Set them for the run."""
        values = msgspec.json.decode(job.headers.get(_HEADER, "{}"), type=dict[str, Any])
        for name, variable in self._variables.items():
            if name in values:
                variable.set(values[name])
        yield
