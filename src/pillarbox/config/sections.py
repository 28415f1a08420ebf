"""A section, read: every value checked, and where it came from kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Generic, TypeVar

import msgspec

from pillarbox.config.environment import check_variables, given_by, variable_of
from pillarbox.config.fields import Field, built, fields_of
from pillarbox.config.loading import Config
from pillarbox.config.nearest import nearest
from pillarbox.config.origins import DEFAULT, Given, Layer, Origin, Path, key_text
from pillarbox.config.values import value_as
from pillarbox.errors import ConfigError

__all__ = ["Section", "check_key", "layers_of", "merged", "read_section", "settled"]

S = TypeVar("S", bound=msgspec.Struct)
_NOTHING: Final[Mapping[Path, object]] = MappingProxyType({})


class Section(msgspec.Struct, Generic[S], frozen=True):
    """Settings, and who gave each of their values."""

    settings: S
    origins: Mapping[Path, Origin]

    def origin(self, path: Path) -> Origin:
        """Who gave the value at that path of the section."""
        return self.origins.get(path, DEFAULT)

    def value(self, path: Path) -> object:
        """The value at that path."""
        value: object = self.settings
        for name in path:
            value = getattr(value, name)
        return value


def read_section(config: Config, cls: type[S], *, at: Path, beside: Sequence[Field] = ()) -> Section[S]:
    """The settings of one table. `beside` are options that stand in the same table and belong to somebody else."""
    fields = fields_of(cls)
    given = merged(layers_of(config, [*fields, *beside], at=at))
    return settled(cls, {field.path: given[field.path] for field in fields if field.path in given}, fields, at=at)


def layers_of(config: Config, fields: Iterable[Field], *, at: Path) -> Sequence[Layer]:
    """What each source says about a table, the weakest first. `ConfigError` for a key that nobody knows."""
    paths = [field.path for field in fields]
    variables = {path: variable_of((*at, *path)) for path in paths}
    check_variables(config.environ, prefix=f"{variable_of(at)}_", known=variables.values())
    file = config.said_by_file(at)
    for path, written in file.items():
        check_key(path, paths, at=at, where=written.origin.where)
    said = {path: given for path, name in variables.items() if (given := given_by(name, config.environ)) is not None}
    return [file, said, config.said_by_flags(at)]


def merged(layers: Iterable[Layer]) -> dict[Path, Given]:
    """Of each value the one that wins."""
    return {path: given for layer in layers for path, given in layer.items()}


def check_key(path: Path, known: Sequence[Path], *, at: Path, where: str) -> None:
    """`ConfigError` for a key that is not known, or is a table where it should not be, or the other way round."""
    if path in known:
        return
    if any(other[: len(path)] == path for other in known):
        raise ConfigError(f"{key_text((*at, *path))} in {where} must be a table.")
    keys = [key_text((*at, *other)) for other in known]
    wrong = key_text((*at, *path))
    raise ConfigError(f"{where} has an unknown key {wrong}: {nearest(wrong, keys)}.")


def settled(
    cls: type[S], given: Layer, fields: Iterable[Field], *, at: Path, fixed: Mapping[Path, object] = _NOTHING
) -> Section[S]:
    """The settings that these values make, with some that were settled before."""
    values = dict(fixed)
    for field in fields:
        if (one := given.get(field.path)) is not None:
            values[field.path] = _converted(field, one, at=at)
    return Section(built(cls, values), {path: given[path].origin for path in values if path in given})


def _converted(field: Field, given: Given, *, at: Path) -> object:
    try:
        return value_as(field.type, given.value)
    except ConfigError as error:
        raise ConfigError(f"{given.origin.of((*at, *field.path))} {str(error).removesuffix('.')}.") from error
