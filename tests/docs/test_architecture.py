"""The page about the architecture names files that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_every_file_on_the_page_is_there() -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", PAGE))

    missing = [name for name in sorted(named) if not list((ROOT / "src" / "pillarbox").rglob(name))]
    assert len(named) > 25
    assert missing == []


def test_every_folder_of_the_package_is_in_the_picture() -> None:
    picture = PAGE.partition("```")[2].partition("```")[0]
    folders = [path.name for path in (ROOT / "src" / "pillarbox").iterdir() if (path / "__init__.py").is_file()]

    assert [folder for folder in sorted(folders) if f"{folder}/" not in picture] == []
