"""Objects of the user's own code, named as `package.module:attribute`: handlers and consumers.

Commands, relays inside web services, the dashboard and the doctor import by this one function. A name that works for
one of them works for all.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from pillarbox.errors import ConfigError, PillarboxError
from pillarbox.redaction import redact_line

__all__ = ["import_object"]


def import_object(name: str, *, what: str, example: str) -> object:
    """Return the object that `package.module:attribute` names; `ConfigError` if it cannot be imported.

    Modules of the current folder are found too, and before installed ones, as with `python -m`: a program that pip
    installed does not look there by itself.
    """
    module, _, attribute = name.partition(":")
    if not (attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ConfigError(f"{name!r} does not name {what}: write {example}.")
    _import_from_here()
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:  # whatever the module does when it is imported
        says_it = isinstance(error, (ImportError, AttributeError, PillarboxError))
        reason = redact_line(str(error) if says_it else f"{type(error).__name__}: {error}").removesuffix(".")
        raise ConfigError(f"The {what.removeprefix('a ')} {name} cannot be loaded: {reason}.") from error


def _import_from_here() -> None:
    folder = str(Path.cwd())
    # "" stands for the current folder too.
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)
