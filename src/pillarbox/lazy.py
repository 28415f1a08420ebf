"""Names of a package that are imported at their first use, so that importing the package stays quick."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

__all__ = ["lazy_names"]


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package that imports each name from its module.

    Define it where type checkers do not look, and import the names under `TYPE_CHECKING`: otherwise they would accept
    any name.
    """

    def __getattr__(name: str) -> object:
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)  # found directly from now on
        return value

    return __getattr__
