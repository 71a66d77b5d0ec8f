"""From ``module:app`` to the application, or to an error that says what to do."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType, TracebackType

from umbel.app import Umbel
from umbel.cli.errors import AppError
from umbel.errors import UmbelError

CANDIDATES = ("tasks", "app", "main", "umbel_app")
"""Modules of the current folder that ``umbel dev`` looks into when it is told nothing."""

_MENTION = re.compile(r"\bUmbel\s*\(")
_DEPTH = 8
_PACKAGE = str(Path(__file__).parent.parent)


def load(address: str | None) -> Umbel:
    """The application at ``module`` or ``module:name``, with the current folder importable.

    Raises:
        AppError: there is none; the text says what to write instead.
    """
    if not address:
        raise AppError(_no_address())
    module_name, _, name = address.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        hint = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise AppError(f"-A {address}: give a module, not a file; try -A {hint}")
    return _find(_import(module_name), name)


def discover() -> str | None:
    """The address of an application in the current folder, going by the files' text only."""
    for name in CANDIDATES:
        path = Path(f"{name}.py")
        if path.is_file() and _MENTION.search(path.read_text(encoding="utf-8", errors="replace")):
            return name
    return None


def _no_address() -> str:
    found = discover()
    if found is not None:
        return f"which application? {found}.py here has one: umbel -A {found} …"
    return (
        "which application? Give -A module:app before the command, or set UMBEL_APP;"
        " commands that only look after a server also do with UMBEL_URL"
    )


def _import(name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise AppError(
                f"there is no module {error.name!r}, neither in {folder} nor installed;"
                " check -A, or run this where the module is"
            ) from None
        raise _broken(name, error) from None
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything
        raise _broken(name, error) from None
    except SystemExit as error:
        raise AppError(
            f"importing {name} ended the program ({error!r}); put what it runs under"
            ' if __name__ == "__main__":'
        ) from None


def _broken(name: str, error: Exception) -> AppError:
    message = f"{name} cannot be imported: {type(error).__name__}: {error}"
    if isinstance(error, ModuleNotFoundError):
        message += f"; install it, for this Python: {sys.executable}"
    return AppError(message, _their_part(error))


def _their_part(error: Exception) -> str:
    """The traceback from the user's first line on."""
    if isinstance(error, UmbelError):  # the message says it all; only the place is missing
        lines = traceback.extract_tb(error.__traceback__)
        theirs = [line for line in lines if not _is_ours(line.filename)]
        place = [line for line in theirs if not line.filename.startswith(_PACKAGE)][-1:]
        # Without the line itself: it may hold the very URL that the message masks.
        return "".join(f'  File "{p.filename}", line {p.lineno}, in {p.name}\n' for p in place)
    inner: TracebackType | None = error.__traceback__
    while inner is not None and _is_ours(inner.tb_frame.f_code.co_filename):
        inner = inner.tb_next
    return "".join(traceback.format_exception(type(error), error, inner, limit=-_DEPTH))


def _is_ours(filename: str) -> bool:
    return filename == __file__ or "importlib" in filename or filename.startswith("<")


def _find(module: ModuleType, name: str) -> Umbel:
    if name:
        found: object = module
        for part in name.split("."):
            found = getattr(found, part, None)
        if isinstance(found, Umbel):
            return found
        what = "is missing" if found is None else f"is of type {type(found).__name__}"
        raise AppError(
            f"{module.__name__}:{name} {what}, not an Umbel application.{_others(module)}"
        )
    found = getattr(module, "app", None)
    if isinstance(found, Umbel):
        return found
    apps = _apps(module)
    if len(apps) == 1:
        return next(iter(apps.values()))
    raise AppError(
        f"{module.__name__} has no Umbel application named app.{_others(module)}"
        " Write app = Umbel() in it, or name another: -A module:name"
    )


def _apps(module: ModuleType) -> dict[str, Umbel]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Umbel)}


def _others(module: ModuleType) -> str:
    names = ", ".join(f"{module.__name__}:{name}" for name in _apps(module))
    return f" There is {names}." if names else ""
