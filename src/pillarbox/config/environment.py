"""Variables: how each option is called in the environment, and which of ours are not known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from pillarbox.config.nearest import nearest
from pillarbox.config.origins import Given, Origin, Path
from pillarbox.errors import ConfigError

__all__ = ["check_variables", "given_by", "variable_of"]

_SHORT: Final[Mapping[Path, str]] = MappingProxyType(
    {
        ("store", "url"): "PILLARBOX_STORE",
        ("store", "schema"): "PILLARBOX_SCHEMA",
        ("store", "prefix"): "PILLARBOX_PREFIX",
    }
)
"""Options that every command has are called shorter."""

_SERVICE_LINK: Final = re.compile(r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
"""What Kubernetes sets in every pod for a service, which may well be called pillarbox-relay."""


def variable_of(path: Path) -> str:
    """`("relay", "retention", "failed")` is PILLARBOX_RELAY_RETENTION_FAILED."""
    return _SHORT.get(path) or f"PILLARBOX_{'_'.join(path).upper()}"


def given_by(variable: str, environ: Mapping[str, str]) -> Given | None:
    """What a variable says. An empty one says nothing."""
    text = environ.get(variable, "").strip()
    return Given(text, Origin("environment", variable)) if text else None


def check_variables(environ: Mapping[str, str], *, prefix: str, known: Iterable[str]) -> None:
    """`ConfigError` for a variable with our prefix that nobody knows: most likely a slip of the pen."""
    names = set(known)
    for variable in sorted(environ):
        if variable.startswith(prefix) and variable not in names and not _SERVICE_LINK.fullmatch(variable):
            raise ConfigError(f"The environment variable {variable} is not known: {nearest(variable, names)}.")
