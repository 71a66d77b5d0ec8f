"""Fingerprints of tasks: two processes whose fingerprints of a task are equal run the same code.

A fingerprint covers the function's own code, its defaults and the options that a worker uses. It
also covers everything of the same application (the top-level package, or the folder if there is no
package) that the function names, directly or indirectly: functions, classes, and the source of
module-level values. It does not cover libraries, code that is reached only through an object at run
time, and data. Line numbers, paths, comments, and the values that expressions have on one machine
or another do not change it.
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

_FINGERPRINT_LENGTH = 12
_OPTIONS = ("timeout", "interruptible", "loop", "max_deaths", "track")


def python_version() -> str:
    """Return the Python version. Only fingerprints of the same version are comparable."""
    return f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"


def fingerprint(task: Task[..., Any]) -> str:
    """Return the fingerprint of a task's code."""
    function = _unwrap(task.function)
    reader = _Reader(_app_of(getattr(function, "__module__", None)))
    options = [f"{name}={getattr(task.declared, name)}" for name in _OPTIONS]
    lines = [*options, _literal_fields(task.declared.retry), *reader.read(function)]
    digest = hashlib.sha256("\n".join(lines).encode(errors="replace")).hexdigest()
    return digest[:_FINGERPRINT_LENGTH]


class _Reader:
    """Reads a function and everything that it names, each once, in the order of their use."""

    def __init__(self, app: str) -> None:
        self._app = app
        self._seen: set[int] = set()

    def read(self, value: Any) -> Iterator[str]:
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, FunctionType):
            yield from self._function(value)
        elif isinstance(value, type):
            for name, member in sorted(vars(value).items()):
                inner = _unwrap(member)
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
                yield from self._named(_unwrap(cell.cell_contents))
            except ValueError:  # the variable has no value yet
                continue
        module = function.__globals__.get("__name__", "")
        names = _names(function.__code__)
        for name in names:
            if name in function.__globals__:
                yield name
                yield from self._global(module, name, function.__globals__[name], names)

    def _global(self, module: str, name: str, value: Any, names: list[str]) -> Iterator[str]:
        value = _unwrap(value)
        if isinstance(value, ModuleType):
            if _app_of(value.__name__) == self._app:
                for attribute in names:
                    inner = _unwrap(vars(value).get(attribute))
                    if inner is not None and not isinstance(inner, ModuleType):
                        yield from self._global(value.__name__, attribute, inner, [])
        elif isinstance(value, FunctionType | type):
            yield from self._named(value)
        else:
            yield from self._value_source(module, name)

    def _named(self, value: Any) -> Iterator[str]:
        """Read a function or a class, if it belongs to the application."""
        if isinstance(value, FunctionType | type) and _app_of(value.__module__) == self._app:
            yield value.__qualname__
            yield from self.read(value)

    def _value_source(self, module: str, name: str) -> Iterator[str]:
        """Yield the source of a module-level value, also from the module it was imported from."""
        if _app_of(module) != self._app:
            return
        values, imports = _source(module)
        yield from values.get(name, ())
        if name in imports and imports[name] != (module, name):
            yield from self._value_source(*imports[name])


def _unwrap(value: Any) -> Any:
    """Return the function inside a wrapper."""
    while True:
        if isinstance(value, partial):
            value = value.func
        elif isinstance(value, staticmethod | classmethod):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        elif isinstance(vars(type(value)).get("__call__"), FunctionType) and not _is_final(value):
            value = vars(type(value))["__call__"]  # an object with a ``__call__`` method
        else:
            return value


def _is_final(value: Any) -> bool:
    return isinstance(value, Task | type | ModuleType)


def _code(code: CodeType, doc: str | None = None) -> Iterator[str]:
    """Yield everything that determines what a code object does, nested ones included."""
    yield code.co_code.hex()
    yield f"{code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount} {code.co_flags}"
    for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
        yield " ".join(names)
    yield getattr(code, "co_exceptiontable", b"").hex()
    for number, constant in enumerate(code.co_consts):
        if isinstance(constant, CodeType):
            yield from _code(constant)
        elif number or constant != doc:  # a docstring does not change what the code does
            yield _literal(constant)


def _names(code: CodeType) -> list[str]:
    found = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= dict.fromkeys(_names(constant))
    return [*found]


def _literal(value: Any) -> str:
    """Return a constant as text; of other values, which may contain an address, only the type."""
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


def _app_of(module: str | None) -> str:
    """Return what the modules of an application share: the top-level package, else the folder."""
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


def _parse(source: bytes) -> ast.Module:
    try:
        return ast.parse(source)
    except SystemError:
        # CPython 3.11 raises it if a finalizer has run Python code during the parse.
        return ast.parse(source)


@lru_cache(maxsize=1000)
def _parsed(module: str, file: str, package: str) -> Source:
    """Return a module's assignments and imported names; nothing if its source is not available."""
    values: dict[str, list[str]] = {}
    imports: dict[str, tuple[str, str]] = {}
    try:
        tree = _parse(Path(file).read_bytes())
    except (OSError, ValueError, SyntaxError):
        return {}, {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            for alias in node.names:
                imports[alias.asname or alias.name] = (_resolve_import(source, package), alias.name)
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
    """Yield the statements of a module, also those under an ``if`` or a ``try``."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
            for name in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, name, []))
            for handler in getattr(node, "handlers", ()):
                yield from _statements(handler.body)


def _resolve_import(name: str, package: str) -> str:
    try:
        return importlib.util.resolve_name(name, package)
    except ImportError:
        return name
