"""What signatures and canvases have in common: they are combined, and published as a graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, cast, overload

from umbel.errors import ConfigurationError
from umbel.tasks.conditions import Symbol, check_key
from umbel.tasks.options import CallOptions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from umbel.tasks.canvas import Chain, Fork
    from umbel.tasks.handle import Handle
    from umbel.tasks.policies import Unique
    from umbel.tasks.task import Sender

R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")

_INHERITED = ("queue", "priority")
_OF_THE_WHOLE = ("delay", "not_before", "expires", "unique", "id", "connection")
CANVAS_OPTIONS = (*_OF_THE_WHOLE, *_INHERITED)
"""The options of a canvas. Those in the second group are defaults for its nodes."""


class CanvasChanges(TypedDict, total=False):
    """The keyword options of ``canvas.options(...)``; CallOptions explains each."""

    queue: str
    priority: int
    delay: float
    not_before: datetime
    expires: float | datetime
    unique: str | Unique
    connection: Any
    id: str


class ResultOf(Symbol):
    """Stands for the result of a node, or an item of it, as an argument of another node."""

    __slots__ = ("pick", "source")

    def __init__(self, source: Composable[Any], pick: tuple[str | int, ...] = ()) -> None:
        self.source = source
        self.pick = pick

    def __getitem__(self, key: str | int) -> ResultOf:
        return ResultOf(self.source, (*self.pick, check_key(key)))

    def __repr__(self) -> str:
        return f"the result of {self.source!r}" + "".join(f"[{key!r}]" for key in self.pick)


class Open:
    """Stands for an argument that a node gets from the node before it."""

    __slots__ = ()
    stands_for_result = True

    def __repr__(self) -> str:
        return "the result of the node before it"


OPEN = Open()


class Composable(Generic[R_co]):
    """A signature or a canvas. Its methods return new values and never change it."""

    __slots__ = ()
    stands_for_result = True

    @property
    def result(self) -> R_co:
        """Stands for its result, as an argument: ``add.s(add.s(1, 2).result, 3)``."""
        return cast(R_co, ResultOf(self))

    @overload
    def __or__(self, after: Fork[Any]) -> Chain[R_co]: ...
    @overload
    def __or__(self, after: Composable[S]) -> Chain[S]: ...
    def __or__(self, after: Any) -> Any:
        from umbel.tasks.canvas import chain

        if not isinstance(after, Composable):
            return NotImplemented
        return chain(self, after)

    def inner(self) -> Sequence[Any]:
        """Return its parts: canvases, signatures and handles."""
        raise NotImplementedError

    def _sender(self) -> Sender:
        left: list[Any] = [self]
        while left:  # not by recursion: a canvas may be nested too deeply
            one = left.pop()
            if (task := getattr(one, "task", None)) is not None:
                return cast("Sender", task.sender)
            if isinstance(one, Composable):
                left += one.inner()[::-1]
        raise ConfigurationError(f"{self!r} has no task; give it a signature, such as add.s(1, 2)")


class CanvasMethods(Composable[R_co]):
    """The methods of every form of canvas; those of a signature take other options."""

    __slots__ = ("call_options", "handlers")
    is_canvas = True

    call_options: CallOptions
    handlers: tuple[Composable[Any], ...]

    def _set_up(self) -> None:
        self.call_options, self.handlers = CallOptions(), ()

    def _copied(self) -> Any:
        """Return a copy, to be changed by the caller."""
        import copy

        return copy.copy(self)

    def delay(self, *first: Any) -> Handle[R_co]:
        """Publish the graph from sync code; all of it is durable when this returns.

        ``first`` are arguments that go before those of each task at the beginning.

        Raises:
            BadArguments: the arguments of a node do not fit; nothing was published.
            DuplicateJob: a live job holds the unique key. Unavailable: the store did not answer.
        """
        return self._sender().send_canvas(self, first)

    async def adelay(self, *first: Any) -> Handle[R_co]:
        """``delay`` for async code."""
        return await self._sender().asend_canvas(self, first)

    def options(self: S, **changes: Unpack[CanvasChanges]) -> S:
        """Return this canvas with options for the whole; others belong to its signatures."""
        check_canvas_options(changes)
        copied = self._copied()  # type: ignore[attr-defined]
        copied.call_options = copied.call_options.merged(dict(changes))
        return copied  # type: ignore[no-any-return]

    def on_error(self: S, handler: Composable[Any]) -> S:
        """Run ``handler(failure)`` once if something in this canvas has failed permanently."""
        check_handler(handler)
        copied = self._copied()  # type: ignore[attr-defined]
        copied.handlers = (*copied.handlers, handler)
        return copied  # type: ignore[no-any-return]


def contains_results(value: Any) -> bool:
    """Whether an argument has results of other nodes in it, also in lists, tuples and dicts."""
    if isinstance(value, dict):
        return any(map(contains_results, value.values()))
    if isinstance(value, list | tuple):
        return any(map(contains_results, value))
    return hasattr(value, "stands_for_result")


def check_handler(handler: object) -> None:
    """Raise ConfigurationError if this cannot handle failures."""
    if not isinstance(handler, Composable):
        raise ConfigurationError(
            f"on_error={handler!r:.80}: give a signature or a canvas, such as clean_up.s()"
        )


def check_nodes(name: str, nodes: Sequence[object]) -> None:
    """Raise ConfigurationError if these are not nodes."""
    for node in nodes:
        if not isinstance(node, Composable):
            raise ConfigurationError(f"{name}({node!r:.80}): give signatures of the same workflow")


def check_canvas_options(changes: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for options that a canvas does not have."""
    for name in changes:
        if name not in CANVAS_OPTIONS:
            raise ConfigurationError(
                f"{name}: not an option of a canvas; it has {', '.join(CANVAS_OPTIONS)}. Give"
                f" others to its signatures: task.options({name}=...).s(...)"
            )


def members_of(given: Sequence[Any], where: str) -> tuple[Any, ...]:
    """Return the parts of a canvas, from arguments or from one list or generator of them."""
    only = given[0] if len(given) == 1 else None
    if only is not None and not getattr(only, "is_part", False) and isinstance(only, Iterable):
        given = tuple(only)
    for part in given:
        if not (isinstance(part, Composable) or getattr(part, "is_part", False)):
            raise ConfigurationError(
                f"{where} of {part!r:.80}: give signatures, such as add.s(1, 2), or canvases"
            )
    return tuple(given)
