"""Finds the modules that ``app.include`` is given: modules, packages, or their names."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from umbel.errors import ConfigurationError


def find_modules(given: ModuleType | str) -> Iterator[ModuleType]:
    """Import a module, and all modules below it if it is a package.

    Raises:
        ConfigurationError: there is no such module. Errors of the module itself are not changed.
    """
    module = given if isinstance(given, ModuleType) else _import(given)
    yield module
    for below in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{module.__name__}."):
        # ``python -m package`` runs __main__; importing it would run it here.
        if below.name.rpartition(".")[2] != "__main__":
            yield importlib.import_module(below.name)


def _import(name: Any) -> ModuleType:
    if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
        raise ConfigurationError(
            f'include({name!r:.80}): give a module or its name, as in "shop.tasks"'
        )
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists, and itself imports one that does not
        raise ConfigurationError(
            f"include({name!r}): there is no module {error.name!r}, neither in {Path.cwd()} nor"
            " installed; check the name, or start Python in the folder of the module"
        ) from None
