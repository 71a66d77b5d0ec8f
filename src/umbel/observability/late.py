"""Call a function when a module is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:  # importing these base classes would load 1.6 MiB
    Loader = MetaPathFinder = object


class WhenImported(MetaPathFinder):
    """Calls a function with a module once it is imported, or immediately if it already is.

    This configures a library that an application may use, without loading it for applications
    that do not.
    """

    def __init__(self, name: str, callback: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._callback = callback
        if name in sys.modules:
            callback(sys.modules[name])
        else:
            sys.meta_path.insert(0, self)

    def cancel(self) -> None:
        """Do not call the function any more."""
        with suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return the spec that the other finders return, with a loader that calls the function."""
        if fullname != self._name:
            return None
        self.cancel()
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _CallbackLoader(spec.loader, self._callback)
        return spec


class _CallbackLoader(Loader):
    """A loader that calls a function when the module is loaded."""

    def __init__(self, loader: Loader, callback: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._callback = callback

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Restored before loading: submodules read the loader of their parent's spec.
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._callback(module)
