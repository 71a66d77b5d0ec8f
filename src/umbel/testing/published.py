"""The calls that a test has published, and the assertions about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

import msgspec

from umbel.errors import BadMessage, ConfigurationError, UmbelError
from umbel.messages import BodyCodec, Command, Envelope
from umbel.tasks import CallOptions, Registry, Task, Unique

_COMPARED = ("queue", "priority", "delay", "unique", "id")
"""The options of a call that assertions compare."""


class PublishedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that was published, with its arguments as the task gets them."""

    id: str
    task: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    queue: str
    priority: int = 0
    delay: float | None = None
    unique: str | None = None

    def __str__(self) -> str:
        delay = f", delay={self.delay:g}" if self.delay else ""
        return f"{_shown(self.task, self.args, self.kwargs)} with queue={self.queue!r}{delay}"


def read_call(envelope: Envelope, registry: Registry, codec: BodyCodec) -> PublishedCall:
    """Return the call in an envelope."""
    data = codec.decode(envelope.body)
    args, kwargs = data.get("args", ()), data.get("kwargs", {})
    if (task := registry.get(envelope.subject)) is not None:
        with suppress(BadMessage):  # from a foreign sender; the job will be buried
            args, kwargs = task.parameters.decode(data)
    return PublishedCall(
        id=envelope.id,
        task=envelope.subject,
        args=tuple(args),
        kwargs=dict(kwargs),
        queue=envelope.queue,
        priority=envelope.priority,
        delay=envelope.delay,
        unique=envelope.unique,
    )


class WantedCall:
    """A call that a test looks for. Without arguments, every call of the task matches."""

    def __init__(
        self,
        task: Task[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        codec: BodyCodec,
    ) -> None:
        if not isinstance(task, Task):
            raise ConfigurationError(f"{task!r}: give a task, as in assert_published(add, 1, 2)")
        self._task = task
        self._args = args
        self._kwargs = kwargs
        self._options = _given(task.call_options)
        self._has_arguments = bool(args or kwargs)
        self._arguments = []
        if self._has_arguments:
            self._arguments = [self._bind_own(), self._decoded(codec)]

    def matches(self, call: PublishedCall) -> bool:
        """Whether it is this call. Options that the test does not give are not compared."""
        if call.task != self._task.name:
            return False
        if any(getattr(call, name) != value for name, value in self._options.items()):
            return False
        if not self._has_arguments:
            return True
        with suppress(TypeError):
            return self._bind(call.args, call.kwargs) in self._arguments
        return False

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        name = self._task.name
        call = _shown(name, self._args, self._kwargs) if self._has_arguments else name
        return f"{call} with {options}" if options else call

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name. Raise TypeError if they do not fit."""
        bound = self._task.parameters.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def _bind_own(self) -> dict[str, Any]:
        """Return the wanted arguments by name. Raise BadArguments if they do not fit."""
        try:
            return self._bind(self._args, self._kwargs)
        except TypeError:
            self._task.parameters.check(self._args, self._kwargs)
            raise

    def _decoded(self, codec: BodyCodec) -> dict[str, Any]:
        """Return the arguments as they arrive at the task: a tuple as a list, for example."""
        command = Command(self._task.name, self._args, self._kwargs)
        with suppress(UmbelError):  # such as unittest.mock.ANY
            data = codec.decode(codec.encode(command.data, what=f"arguments of {command.task}"))
            args, kwargs = self._task.parameters.decode(data)
            return self._bind(args, kwargs)
        return self._bind(self._args, self._kwargs)


def list_calls(calls: Sequence[PublishedCall]) -> str:
    """Return the calls as text, one on each line."""
    if not calls:
        return "Nothing was published."
    return "Published:\n" + "\n".join(f"  {call}" for call in calls)


def _given(options: CallOptions) -> dict[str, Any]:
    """Return the options that were given. Raise ConfigurationError if one is not compared."""
    unset = CallOptions()
    names = [one.name for one in fields(options)]
    given = {name: getattr(options, name) for name in names}
    given = {name: value for name, value in given.items() if value != getattr(unset, name)}
    if other := [name for name in given if name not in _COMPARED]:
        raise ConfigurationError(
            f"{other[0]}=: assertions compare {', '.join(_COMPARED)}; leave it out"
        )
    if isinstance(unique := given.get("unique"), Unique):
        given["unique"] = unique.key
    return given


def _shown(task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    parts = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    return f"{task}({', '.join(parts)})"
