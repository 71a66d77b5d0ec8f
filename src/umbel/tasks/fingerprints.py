"""What code a task is made of, as a short word: two processes with the same word run the same code.

Seen are the function's own code, its defaults and the options a worker goes by; and of the same
application (the top-level package; where there is none, the folder) whatever it names, and what
that names in turn: functions, classes, and how module-level values are written. Not seen are
libraries, what is reached only through an object at run time, and data. Line numbers, paths,
comments, and what values come to on one machine or another, do not count.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from umbel.tasks.task import Task

_DIGITS = 12
_OPTIONS = ("timeout", "interruptible", "loop", "max_deaths", "track")


def python() -> str:
    """The version whose byte code this is: only within one are fingerprints comparable."""
    return f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"


def fingerprint(task: Task[..., Any]) -> str:
    """The word for a task's code."""
    function = _plain(task.function)
    reader = _Reader(_home(getattr(function, "__module__", None)))
    options = [f"{name}={getattr(task.declared, name)}" for name in _OPTIONS]
    lines = [*options, _literal_fields(task.declared.retry), *reader.read(function)]
    return hashlib.sha256("\n".join(lines).encode(errors="replace")).hexdigest()[:_DIGITS]


class _Reader:
    """Reads a function and what it names, each once, in the order they are met."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._met: set[int] = set()

    def read(self, value: Any) -> Iterator[str]:
        if id(value) in self._met:
            return
        self._met.add(id(value))
        if isinstance(value, FunctionType):
            yield from self._function(value)
        elif isinstance(value, type):
            for name, member in sorted(vars(value).items()):
                inner = _plain(member)
                if isinstance(inner, FunctionType):
                    yield f"{value.__qualname__}.{name}"
                    yield from self.read(inner)
            for base in value.__bases__:
                yield from self._named(base)
        else:
            yield type(value).__qualname__

    def _function(self, function: FunctionType) -> Iterator[str]:
        yield from _code(function.__code__, function.__doc__)
        yield from map(_literal, function.__defaults__ or ())
        for name, default in sorted((function.__kwdefaults__ or {}).items()):
            yield f"{name}={_literal(default)}"
        for cell in function.__closure__ or ():
            try:
                yield from self._named(_plain(cell.cell_contents))
            except ValueError:  # not filled yet
                continue
        module = function.__globals__.get("__name__", "")
        names = _names(function.__code__)
        for name in names:
            if name in function.__globals__:
                yield name
                yield from self._global(module, name, function.__globals__[name], names)

    def _global(self, module: str, name: str, value: Any, names: list[str]) -> Iterator[str]:
        value = _plain(value)
        if isinstance(value, ModuleType):
            if _home(value.__name__) == self._home:
                for attribute in names:
                    inner = _plain(vars(value).get(attribute))
                    if inner is not None and not isinstance(inner, ModuleType):
                        yield from self._global(value.__name__, attribute, inner, [])
        elif isinstance(value, FunctionType | type):
            yield from self._named(value)
        else:
            yield from self._written(module, name)

    def _named(self, value: Any) -> Iterator[str]:
        """A function or a class, if it is the application's own."""
        if isinstance(value, FunctionType | type) and _home(value.__module__) == self._home:
            yield value.__qualname__
            yield from self.read(value)

    def _written(self, module: str, name: str) -> Iterator[str]:
        """How a module-level value is written, also where it was imported from."""
        if _home(module) != self._home:
            return
        values, imports = _source(module)
        yield from values.get(name, ())
        if name in imports and imports[name] != (module, name):
            yield from self._written(*imports[name])


def _plain(value: Any) -> Any:
    """The function behind what only wraps it."""
    while True:
        if isinstance(value, partial):
            value = value.func
        elif isinstance(value, staticmethod | classmethod):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        elif isinstance(vars(type(value)).get("__call__"), FunctionType) and not _is_known(value):
            value = vars(type(value))["__call__"]  # an object that is called like a function
        else:
            return value


def _is_known(value: Any) -> bool:
    return isinstance(value, Task | type | ModuleType)


def _code(code: CodeType, doc: str | None = None) -> Iterator[str]:
    """All of a code object that says what it does, and of those within it."""
    yield code.co_code.hex()
    yield f"{code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount} {code.co_flags}"
    for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
        yield " ".join(names)
    yield getattr(code, "co_exceptiontable", b"").hex()
    for place, constant in enumerate(code.co_consts):
        if isinstance(constant, CodeType):
            yield from _code(constant)
        elif place or constant != doc:  # what it says of itself is not what it does
            yield _literal(constant)


def _names(code: CodeType) -> list[str]:
    found = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= dict.fromkeys(_names(constant))
    return [*found]


def _literal(value: Any) -> str:
    """A constant as text; of anything else, which may hold an address, only what it is."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_literal, value))})"
    if isinstance(value, frozenset | set):
        return f"{{{', '.join(sorted(map(_literal, value)))}}}"
    if isinstance(value, type | FunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    return type(value).__qualname__


def _literal_fields(value: Any) -> str:
    names = getattr(value, "__slots__", None) or sorted(getattr(value, "__dict__", ()))
    return " ".join(f"{name}={_literal(getattr(value, name, None))}" for name in names)


def _home(module: str | None) -> str:
    """What an application's modules have in common: the top-level package, else the folder."""
    name = module or ""
    loaded = sys.modules.get(name)
    if "." in name or hasattr(loaded, "__path__"):
        return name.partition(".")[0]
    file = getattr(loaded, "__file__", None)
    return _folder(file) if file else name


@lru_cache(maxsize=1000)
def _folder(file: str) -> str:
    return str(Path(file).resolve().parent)


Source = tuple[dict[str, list[str]], dict[str, tuple[str, str]]]


def _source(module: str) -> Source:
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    if loaded is None or not file or not file.endswith(".py"):
        return {}, {}
    return _parsed(module, file, loaded.__package__ or "")


@lru_cache(maxsize=1000)
def _parsed(module: str, file: str, package: str) -> Source:
    """A module's assignments, and what it imports by name. Nothing where there is no source."""
    values: dict[str, list[str]] = {}
    imports: dict[str, tuple[str, str]] = {}
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, ValueError, SyntaxError):
        return {}, {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            for alias in node.names:
                imports[alias.asname or alias.name] = (_resolved(source, package), alias.name)
    for node in _statements(tree.body):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            written = ast.dump(node.value)
            for target in targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        values.setdefault(name.id, []).append(written)
    return values, imports


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those of the module itself, also under an ``if`` or a ``try``."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
            for name in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, name, []))
            for handler in getattr(node, "handlers", ()):
                yield from _statements(handler.body)


def _resolved(name: str, package: str) -> str:
    try:
        return importlib.util.resolve_name(name, package)
    except ImportError:
        return name
