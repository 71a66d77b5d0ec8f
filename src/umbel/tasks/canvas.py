"""The forms of a canvas: immutable values that describe a graph, which is built on publishing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, overload

from umbel.errors import ConfigurationError, NodeFailed
from umbel.messages import Policy
from umbel.tasks.composing import CanvasMethods, Composable, members_of
from umbel.tasks.conditions import Symbol
from umbel.tasks.handle import Handle
from umbel.tasks.task import Signature, Task

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")
Collect = Literal["collect"]
Part = Composable[R] | Handle[R]


class Chain(CanvasMethods[R_co]):
    """Parts that run one after the other. Each gets the result of the part before it."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Composable[Any], ...]) -> None:
        self._set_up()
        self.parts = parts

    def inner(self) -> Sequence[Any]:
        return self.parts

    def __repr__(self) -> str:
        return f"chain of {len(self.parts)}"


class Group(CanvasMethods[R_co]):
    """Members that run in parallel. Its result is the list of their results, in order."""

    __slots__ = ("errors", "limit", "members")

    def __init__(self, members: tuple[Any, ...], errors: Policy, limit: int | None) -> None:
        self._set_up()
        self.members = members
        self.errors = check_policy(errors)
        self.limit = check_limit(limit)

    def inner(self) -> Sequence[Any]:
        return self.members

    def __repr__(self) -> str:
        return f"group of {len(self.members)}"


class Map(CanvasMethods[R_co]):
    """A task that runs once for each item of a list, which may be the result of a node.

    With a size, each job makes so many calls.
    """

    __slots__ = ("errors", "items", "limit", "signature", "size", "star")

    def __init__(
        self,
        signature: Signature[Any],
        items: Any,
        *,
        star: bool = False,
        size: int = 0,
        errors: Policy = "fail",
        limit: int | None = None,
    ) -> None:
        self._set_up()
        self.signature = _call_of_items(signature, "chunks" if size else "map")
        self.items = check_items(items)
        self.star = star
        self.size = size
        self.errors = check_policy(errors)
        self.limit = check_limit(limit)

    def inner(self) -> Sequence[Any]:
        return (self.signature,)

    def __repr__(self) -> str:
        return f"{'chunks' if self.size else 'map'} of {self.signature.task.name}"


class Fork(CanvasMethods[R_co]):
    """Branches of a chain that the chain does not wait for."""

    __slots__ = ("branches",)

    def __init__(self, branches: tuple[Composable[Any], ...]) -> None:
        self._set_up()
        self.branches = branches

    def inner(self) -> Sequence[Any]:
        return self.branches

    def __repr__(self) -> str:
        return f"fork of {len(self.branches)}"


A = TypeVar("A")


@overload
def chain(first: Composable[R], last: Fork[Any], /) -> Chain[R]: ...
@overload
def chain(only: Composable[R], /) -> Chain[R]: ...
@overload
def chain(first: Part[Any], last: Composable[R], /) -> Chain[R]: ...
@overload
def chain(a: Composable[Any], b: Composable[Any], last: Composable[R], /) -> Chain[R]: ...
@overload
def chain(
    a: Composable[Any], b: Composable[Any], c: Composable[Any], last: Composable[R], /
) -> Chain[R]: ...
@overload
def chain(
    a: Composable[Any],
    b: Composable[Any],
    c: Composable[Any],
    d: Composable[Any],
    last: Composable[R],
    /,
) -> Chain[R]: ...
@overload
def chain(*parts: Composable[Any]) -> Chain[Any]: ...
@overload
def chain(parts: Iterable[Composable[Any]], /) -> Chain[Any]: ...
def chain(*parts: Any) -> Any:
    """Run parts one after the other: ``chain(a.s(1), b.s())`` is ``b(a(1))``."""
    found: list[Composable[Any]] = []
    for part in members_of(parts, "chain"):
        if isinstance(part, Chain) and not part.handlers and not _has_options(part):
            found += part.parts
        else:
            found.append(part)
    if not found:
        raise ConfigurationError("chain(): give it at least one signature")
    if any(isinstance(part, Handle) for part in found[1:]):
        raise ConfigurationError(
            "chain: a handle is of a job that exists already, so it can only be the first part"
        )
    if isinstance(found[0], Fork):
        raise ConfigurationError("fork: there is no result before it; put a signature first")
    return Chain(tuple(found))


@overload
def group(
    *members: Part[R], errors: Collect, limit: int | None = None
) -> Group[list[R | NodeFailed]]: ...
@overload
def group(
    *members: Part[R], errors: Literal["fail", "cancel"] = "fail", limit: int | None = None
) -> Group[list[R]]: ...
@overload
def group(
    members: Iterable[Part[R]], /, *, errors: Collect, limit: int | None = None
) -> Group[list[R | NodeFailed]]: ...
@overload
def group(
    members: Iterable[Part[R]], /, *, errors: Policy = "fail", limit: int | None = None
) -> Group[list[R]]: ...
def group(*members: Any, errors: Policy = "fail", limit: int | None = None) -> Any:
    """Run members in parallel. Handles of jobs may be members, too.

    ``limit`` is how many members run at once. For ``errors`` see ``Policy``: ``"fail"``,
    ``"cancel"``, or ``"collect"``.
    """
    return Group(members_of(members, "group"), errors, limit)


def chord(
    header: Iterable[Part[Any]],
    body: Composable[R],
    *,
    errors: Policy = "fail",
    limit: int | None = None,
) -> Chain[R]:
    """Run the body with the list of results of the header: ``group(header) | body``."""
    return chain(group([*header], errors=errors, limit=limit), body)


@overload
def chunks(
    task: Task[..., R] | Signature[R],
    calls: Any,
    size: int,
    *,
    errors: Collect,
    limit: int | None = None,
) -> Map[list[R | NodeFailed]]: ...
@overload
def chunks(
    task: Task[..., R] | Signature[R],
    calls: Any,
    size: int,
    *,
    errors: Policy = "fail",
    limit: int | None = None,
) -> Map[list[R]]: ...
def chunks(
    task: Any, calls: Any, size: int, *, errors: Policy = "fail", limit: int | None = None
) -> Any:
    """Make many calls of a task, ``size`` of them in each job. The result is one flat list.

    ``calls`` is a list of argument tuples, or a canvas with such a list as its result.
    """
    if type(size) is not int or size < 1:
        raise ConfigurationError(f"size={size!r:.80} of chunks: give a number of at least 1")
    return Map(task_signature(task), calls, star=True, size=size, errors=errors, limit=limit)


def fork(*branches: Composable[Any]) -> Fork[None]:
    """Start branches with the result of the chain before it; the chain does not wait for them."""
    found = members_of(branches, "fork")
    if not found:
        raise ConfigurationError("fork(): give it at least one signature")
    return Fork(found)


def task_signature(task: Any) -> Signature[Any]:
    """Return the signature that a map calls for each item. Raise ConfigurationError."""
    if isinstance(task, Signature):
        return task
    if isinstance(task, Task):
        return Signature(task, (), {}, task.call_options, is_open=True)
    raise ConfigurationError(f"{task!r:.80}: give a task, or a signature with further arguments")


def _call_of_items(signature: Signature[Any], form: str) -> Signature[Any]:
    """Return the signature. Raise ConfigurationError if it has what its calls would not have."""
    has = {
        "on_error": bool(signature.handlers),
        "after": bool(signature.before),
        "when": signature.condition is not None,
        "compensate": signature.undo is not None,
    }
    dropped = [name for name, value in has.items() if value]
    if dropped:
        raise ConfigurationError(
            f"{', '.join(dropped)} of {signature!r} in {form}: its calls do not have them. Give"
            f" on_error to the {form}, and the others to a task before it in a chain"
        )
    return signature


def check_policy(errors: object) -> Policy:
    """Return the policy. Raise ConfigurationError."""
    if errors not in ("fail", "cancel", "collect"):
        raise ConfigurationError(f'errors={errors!r:.80}: give "fail", "cancel" or "collect"')
    return errors


def check_items(items: Any) -> Any:
    """Return the items of a map: a list, a canvas, a result, or None. Raise ConfigurationError."""
    if items is None or isinstance(items, Composable | Symbol):
        return items
    if not isinstance(items, Iterable) or isinstance(items, str | bytes | bytearray | Mapping):
        raise ConfigurationError(
            f"{items!r:.80} as items of a map: give a list of items, or a canvas whose result is a"
            " list"
        )
    return [*items]


def check_limit(limit: object) -> int:
    """Return the limit, 0 for none. Raise ConfigurationError."""
    if limit is None:
        return 0
    if type(limit) is not int or limit < 1:
        raise ConfigurationError(f"limit={limit!r:.80}: give how many run at once, 1 or more")
    return limit


def _has_options(canvas: CanvasMethods[Any]) -> bool:
    from umbel.tasks.options import CallOptions

    return canvas.call_options != CallOptions()
