"""From ``module:app`` to the application, or to an error that says what to do."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType, TracebackType

from umbel.app import Umbel
from umbel.configuration import read_config_file
from umbel.configuration.file import DEFAULT_FILE
from umbel.errors import ConfigurationError, UmbelError

APP_MODULES = ("tasks", "app", "main", "umbel_app")
"""Modules of the current folder in which ``umbel dev`` looks for an application without -A."""

_CONSTRUCTOR_CALL = re.compile(r"\bUmbel\s*\(")
_MAX_TRACEBACK_FRAMES = 8
_PACKAGE_FOLDER = str(Path(__file__).parent.parent)


class AppError(ConfigurationError):
    """The application cannot be loaded. ``details`` is the user's own traceback, if any."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


def load_app(address: str | None) -> Umbel:
    """Return the application at ``module`` or ``module:name``; modules here can be imported.

    Raises:
        AppError: there is none; the text says what to write instead.
    """
    if not address:
        raise AppError(_missing_address_text())
    module_name, _, name = address.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        hint = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise AppError(f"-A {address}: give a module, not a file; try -A {hint}")
    return _find(_import(module_name), name)


def load_app_or_bare(address: str | None) -> Umbel:
    """Return the application; without an address, one without tasks if its broker is configured.

    That is enough for commands that only look after a server. Raises AppError like ``load_app``.
    """
    has_url = any(map(os.environ.get, ("UMBEL_URL", "UMBEL_BROKER")))
    if address is None and (has_url or "broker" in read_config_file(os.environ).settings):
        return Umbel()
    return load_app(address)


def find_app_module() -> str | None:
    """Return the module of the current folder that makes an application, judged by its text."""
    for name in APP_MODULES:
        path = Path(f"{name}.py")
        if path.is_file() and _CONSTRUCTOR_CALL.search(
            path.read_text(encoding="utf-8", errors="replace")
        ):
            return name
    return None


def _missing_address_text() -> str:
    found = find_app_module()
    if found is not None:
        return f"no application is given, but {found}.py here has one; try: umbel -A {found} …"
    return (
        "no application is given. Write -A module:app before the command, or set UMBEL_APP."
        " For commands that only look after a server, UMBEL_URL is enough"
    )


def _import(name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            parent, _, last = name.rpartition(".")
            if parent in sys.modules and not hasattr(sys.modules[parent], "__path__"):
                raise AppError(
                    f"{parent} is a module, not a package; try -A {parent}:{last}"
                ) from None
            raise AppError(
                f"there is no module {error.name!r}, neither in {folder} nor installed;"
                " check -A, or run the command in the folder of the module"
            ) from None
        raise _import_error(name, error) from None
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything
        raise _import_error(name, error) from None
    except SystemExit as error:
        raise AppError(
            f"importing {name} ended the program ({error!r}); put the code that does so under"
            ' if __name__ == "__main__":'
        ) from None


def _import_error(name: str, error: Exception) -> AppError:
    if isinstance(error, UmbelError):  # its message is complete
        # Not a mistake in the module: it is in the environment or in the configuration file.
        is_elsewhere = str(error).startswith(("UMBEL_", DEFAULT_FILE))
        return AppError(str(error), "" if is_elsewhere else _user_line(error))
    message = f"{name} cannot be imported: {type(error).__name__}: {error}"
    if isinstance(error, ModuleNotFoundError):
        message += f"; install it for this Python: {sys.executable}"
    return AppError(message, _user_traceback(error))


def _user_line(error: UmbelError) -> str:
    """Return the place in the user's code that caused the error."""
    lines = traceback.extract_tb(error.__traceback__)
    outside = [line for line in lines if not _is_import_machinery(line.filename)]
    place = [line for line in outside if not line.filename.startswith(_PACKAGE_FOLDER)][-1:]
    # Without the source line, which may contain the URL that the message masks.
    return "".join(f'  File "{p.filename}", line {p.lineno}, in {p.name}\n' for p in place)


def _user_traceback(error: Exception) -> str:
    """Return the traceback from the first line of the user's code on."""
    inner: TracebackType | None = error.__traceback__
    while inner is not None and _is_import_machinery(inner.tb_frame.f_code.co_filename):
        inner = inner.tb_next
    return "".join(
        traceback.format_exception(type(error), error, inner, limit=-_MAX_TRACEBACK_FRAMES)
    )


def _is_import_machinery(filename: str) -> bool:
    return filename == __file__ or "importlib" in filename or filename.startswith("<")


def _find(module: ModuleType, name: str) -> Umbel:
    if name:
        found: object = module
        for part in name.split("."):
            found = getattr(found, part, None)
        if isinstance(found, Umbel):
            return found
        what = (
            "does not exist"
            if found is None
            else f"is of type {type(found).__name__}, not an Umbel application"
        )
        found_apps = _list_apps(module) or f" Write {name} = Umbel() in {module.__name__}"
        raise AppError(f"{module.__name__}:{name} {what}.{found_apps}")
    found = getattr(module, "app", None)
    if isinstance(found, Umbel):
        return found
    apps = _apps(module)
    if len(apps) == 1:
        return next(iter(apps.values()))
    raise AppError(
        f"{module.__name__} has no Umbel application named app.{_list_apps(module)}"
        " Write app = Umbel() in it, or give another name: -A module:name"
    )


def _apps(module: ModuleType) -> dict[str, Umbel]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Umbel)}


def _list_apps(module: ModuleType) -> str:
    names = ", ".join(f"{module.__name__}:{name}" for name in _apps(module))
    return f" Found: {names}." if names else ""
