"""What the tests of the configuration share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as FilePath

import pytest

from pillarbox.cli.effective import Entry, effective
from pillarbox.config import Config, Given, Origin
from pillarbox.config.origins import Path
from pillarbox.errors import ConfigError

__all__ = ["BASE", "entry", "load", "refusal"]

BASE = '[destinations.web-hooks]\nurl = "memory:"\n[destinations.dead]\nurl = "memory:"\n'


def load(folder: FilePath, text: str = "", flags: Mapping[Path, str] | None = None, /, **environ: str) -> Config:
    file = folder / "pillarbox.toml"
    file.write_text(text)
    given = {path: Given(value, Origin("flag", f"--{path[-1]}")) for path, value in (flags or {}).items()}
    return Config.load(file, environ=environ, flags=given)


def entry(config: Config, path: Path) -> Entry:
    (found,) = [entry for entry in effective(config) if entry.path == path]
    return found


def refusal(folder: FilePath, text: str = "", /, **environ: str) -> str:
    with pytest.raises(ConfigError) as refused:
        effective(load(folder, text, **environ))
    return str(refused.value).replace(str(folder / "pillarbox.toml"), "FILE")
