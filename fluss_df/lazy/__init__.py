"""Packages whose names are imported when they are used."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package.

    Parameters
    ----------
    package
        Its ``__name__``.
    names
        Module of the package, as ``"io.scan"`` -> the names that it has, with spaces between them.
    """
    modules = {name: module for module, has in names.items() for name in has.split()}
    alike = {name for name, module in modules.items() if name == module}
    if alike:
        sys.modules[package].__class__ = _having(alike)

    def get(name: str) -> Any:
        module = modules.get(name)
        if module is not None:
            value = getattr(importlib.import_module(f"{package}.{module}"), name)
            setattr(sys.modules[package], name, value)
            return value
        if not name.startswith("_"):
            # a module of the package, which "import package" alone has not imported yet
            try:
                return importlib.import_module(f"{package}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{package}.{name}":
                    raise
        raise AttributeError(f"module '{package}' has no attribute '{name}'")

    def everything() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return get, everything


def _having(alike: set[str]) -> type[types.ModuleType]:
    """Return the class of a package of which some names are those of the modules that have them.

    Whoever imports such a module makes it an attribute of the package, in the place of what users
    mean by the name.
    """

    class Package(types.ModuleType):
        def __setattr__(self, name: str, value: object) -> None:
            if name in alike and isinstance(value, types.ModuleType):
                value = getattr(value, name)
            super().__setattr__(name, value)

    return Package
