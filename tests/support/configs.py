"""What the tests of the configuration share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pillarbox.cli.config import ConfigEntry, list_entries
from pillarbox.config import Config
from pillarbox.errors import ConfigError
from pillarbox.settings import ConfigOrigin, ConfigValue, KeyPath

__all__ = ["BASE", "entry", "load", "refusal"]

BASE = '[destinations.web-hooks]\nurl = "memory:"\n[destinations.dead]\nurl = "memory:"\n'


def load(folder: Path, text: str = "", flags: Mapping[KeyPath, str] | None = None, /, **environ: str) -> Config:
    file = folder / "pillarbox.toml"
    file.write_text(text)
    given = {path: ConfigValue(value, ConfigOrigin("flag", f"--{path[-1]}")) for path, value in (flags or {}).items()}
    return Config.load(file, environ=environ, flags=given)


def entry(config: Config, path: KeyPath) -> ConfigEntry:
    (found,) = [entry for entry in list_entries(config) if entry.path == path]
    return found


def refusal(folder: Path, text: str = "", /, **environ: str) -> str:
    with pytest.raises(ConfigError) as refused:
        list_entries(load(folder, text, **environ))
    return str(refused.value).replace(str(folder / "pillarbox.toml"), "FILE")
