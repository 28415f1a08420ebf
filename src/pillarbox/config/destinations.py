"""`[destinations.NAME]`: which there are, and what is said about each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pillarbox.config.environment import check_variables, given_by
from pillarbox.config.loading import Config
from pillarbox.config.origins import Given, Layer, Path
from pillarbox.errors import ConfigError
from pillarbox.message import SKIPPED_DESTINATION
from pillarbox.names import check_destination

__all__ = ["destination_layers", "destination_names"]

_PREFIX: Final = "PILLARBOX_DESTINATION_"
_URL: Final = "_URL"


def destination_names(config: Config) -> Sequence[str]:
    """Every destination that the file, the environment or flags know, sorted."""
    file = config.file.get("destinations", {})
    for name, table in file.items():
        if not isinstance(table, Mapping):
            raise ConfigError(f"destinations.{name} in {config.file_name} must be a table with a url.")
    flags = {path[1] for path in config.flags if path[0] == "destinations"}
    told = {_slug(name) for name in (*file, *flags)}
    new = {slug.lower() for slug in _slugs_with_url(config.environ) if slug not in told}
    names = sorted({*file, *flags, *new})
    if SKIPPED_DESTINATION in names:
        raise ConfigError(f"The destination {SKIPPED_DESTINATION!r} is reserved; choose another name.")
    return [check_destination(name) for name in names]


def destination_layers(config: Config, own: Iterable[Path]) -> Mapping[str, Sequence[Layer]]:
    """What each source says about each destination, the weakest first. `own` options are not its transport's."""
    names = destination_names(config)
    said = _said_by_environment(config.environ, names, own)
    return {
        name: [
            config.said_by_file(("destinations", name)),
            said.get(name, {}),
            config.said_by_flags(("destinations", name)),
        ]
        for name in names
    }


def _said_by_environment(
    environ: Mapping[str, str], names: Sequence[str], own: Iterable[Path]
) -> Mapping[str, dict[Path, Given]]:
    """A variable belongs to the destination with the longest name that fits; what follows is the option."""
    keys = {"_".join(path).upper(): path for path in own}
    said: dict[str, dict[Path, Given]] = {}
    for variable in sorted(environ):
        if not variable.startswith(_PREFIX) or (given := given_by(variable, environ)) is None:
            continue
        slug, key = _split(variable, [_slug(name) for name in names])
        if not slug:
            check_variables({variable: ""}, prefix=_PREFIX, known=_possible(names, keys))
            continue
        said.setdefault(_only(names, slug, variable), {})[keys.get(key, (key.lower(),))] = given
    return said


def _split(variable: str, slugs: Sequence[str]) -> tuple[str, str]:
    rest = variable.removeprefix(_PREFIX)
    if rest.endswith(_URL):
        return rest.removesuffix(_URL), "URL"
    fitting = [slug for slug in slugs if rest.startswith(f"{slug}_")]
    slug = max(fitting, key=len, default="")
    return slug, rest[len(slug) + 1 :]


def _only(names: Sequence[str], slug: str, variable: str) -> str:
    meant = [name for name in names if _slug(name) == slug]
    if len(meant) > 1:
        raise ConfigError(
            f"The environment variable {variable} may mean the destination {' or '.join(meant)}: give it in the file."
        )
    return meant[0]


def _possible(names: Sequence[str], keys: Iterable[str]) -> Sequence[str]:
    slugs = [_slug(name) for name in names] or ["NAME"]
    return [f"{_PREFIX}{slug}_{key}" for slug in slugs for key in keys]


def _slugs_with_url(environ: Mapping[str, str]) -> Sequence[str]:
    told = [name.removeprefix(_PREFIX) for name, value in environ.items() if name.startswith(_PREFIX) and value.strip()]
    return [rest.removesuffix(_URL) for rest in told if rest.endswith(_URL)]


def _slug(name: str) -> str:
    """A destination's name as variables have it."""
    return re.sub(r"[^A-Z0-9]", "_", name.upper())
