"""Packages that import a name at its first use: what needs no torch does not wait for it."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def lazy(package: str, **names: str) -> None:
    """Let `package` import its public names when they are first used: module="name name …", for each of its modules.

    The package also imports them under TYPE_CHECKING, for readers and type checkers.
    """
    module = sys.modules[package]
    module.__class__ = _Lazy
    vars(module)["_modules"] = {name: module for module, listed in names.items() for name in listed.split()}


class _Lazy(ModuleType):
    """A package with lazy names, {name: module}."""

    _modules: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        if name in vars(self).get("_modules", ()):
            found = getattr(import_module(f"{self.__name__}.{self._modules[name]}"), name)
            vars(self)[name] = found
            return found
        if not name.startswith("_"):
            submodule = f"{self.__name__}.{name}"
            try:
                return import_module(submodule)
            except ModuleNotFoundError as missing:
                if missing.name != submodule:
                    raise
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; the import of a module does not hide the function of the same name."""
        if not (name in self._modules and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *self._modules})
