"""A page: its address, who may see it, and what its reader gets."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from umbel.app import Umbel
from umbel.control import Role, User
from umbel.dashboard.visibility import Visibility
from umbel.errors import ConfigurationError
from umbel.operations import Operations


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader needs: the store, who asks, and the parameters of the URL."""

    app: Umbel
    operations: Operations
    user: User
    mask: tuple[str, ...]
    query: Mapping[str, str]
    path: Mapping[str, str]
    address: str = "MODULE:APP"

    @property
    def visibility(self) -> Visibility:
        return Visibility(self.user, self.mask, self.app.codec, self.app.registry)

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        """Return a parameter that must be one of a few words. Raises ConfigurationError."""
        value = self.query.get(name, "") or default
        if value not in allowed:
            raise ConfigurationError(f"{name}={value!r:.40}: give one of {', '.join(allowed)}")
        return value


Reader = Callable[[View], Awaitable[dict[str, Any]]]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A page: its address, who may see it, what it reads, and how often while it is open."""

    name: str
    path: str
    title: str
    read: Reader
    role: Role = "viewer"
    seconds: float = 1.0
    """Seconds between two updates; 0 for a page that is not updated."""
    parameters: tuple[str, ...] = ()
    """Parameters of the URL."""


def path_pattern(path: str) -> str:
    """Return the path of a page as Starlette matches it: names may contain slashes."""
    return re.sub(r"{(\w+)}", r"{\1:path}", path)


def form_fields(task: Any, visibility: Visibility) -> list[dict[str, Any]]:
    """Return the fields of a form for a call of a task or workflow."""
    found = []
    for parameter in task.parameters.signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        annotation = parameter.annotation
        resolved = task.parameters.annotation(parameter.name)
        kind = "" if annotation is parameter.empty else getattr(annotation, "__name__", annotation)
        is_required = parameter.default is parameter.empty
        found.append(
            {
                "name": parameter.name,
                "type": str(kind),
                "is_text": _is_text(resolved),
                "is_required": is_required,
                "default": None if is_required else visibility.default(parameter),
            }
        )
    return found


def _is_text(annotation: Any) -> bool:
    """Return whether all values of a type are texts, apart from None."""
    if annotation is None or annotation is type(None):
        return False
    if isinstance(annotation, type):
        return issubclass(annotation, str)
    values = get_args(annotation)
    if get_origin(annotation) is Literal:
        return all(isinstance(value, str) for value in values)
    if get_origin(annotation) is Annotated:
        return _is_text(values[0])
    if get_origin(annotation) in (Union, UnionType):
        return all(_is_text(one) for one in values if one is not type(None))
    return False
