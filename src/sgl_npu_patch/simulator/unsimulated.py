"""Packages whose modules can be imported, and whose parts raise by name when they are used.

SGLang imports at the top of its modules what it calls on some paths only. So an import says nothing
yet; a call of what is not simulated must never pass silently.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

Parts = Mapping[str, Mapping[str, object]]
"""What modules have, by their dotted names."""


class Unsimulated:
    """Stand in for a function, kernel or class that can be named and not used."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __getattr__(self, name: str) -> Unsimulated:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unsimulated(f"{self.__name__}.{name}")

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"{self.__name__} is not simulated")

    __call__ = __getitem__ = __bool__ = __iter__ = __len__ = __enter__ = _refuse

    def __repr__(self) -> str:
        return f"<{self.__name__}, which is not simulated>"


class Module(ModuleType):
    """A module that has any part, most of them unsimulated."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unsimulated(f"{self.__name__}.{name}")


class Finder(MetaPathFinder, Loader):
    """Find the modules of one package, and the package itself if nothing else does."""

    def __init__(
        self,
        package: str,
        parts: Parts,
        exists: Callable[[str], bool] = lambda name: True,
        loaded: Mapping[str, Callable[[], None]] | None = None,
    ) -> None:
        """Take what modules have; all others, if they `exist`, have unsimulated parts only.

        Args:
            loaded: what an import does, by module.
        """
        self._package = package
        self._parts = parts
        self._exists = exists
        self._loaded = loaded or {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of the package; see `MetaPathFinder`."""
        if fullname.partition(".")[0] != self._package or not self._exists(fullname):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module; see `Loader`."""
        module = Module(spec.name)
        module.__dict__.update(self._parts.get(spec.name, {}))
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do what importing it does; see `Loader`."""
        self._loaded.get(module.__name__, lambda: None)()


def install(finder: Finder, module: ModuleType | None = None) -> None:
    """Let the modules be found, after all others, of which one may be the package itself."""
    if module is not None:
        module.__path__ = []
    sys.meta_path.append(finder)
