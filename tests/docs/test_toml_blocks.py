"""The TOML of the pages is a configuration that the program reads: no unknown key, no value that it refuses."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.cli.program import pillarbox
from tests.support.docs.console_blocks import ROOT, list_pages

_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
_BLOCKS = [
    (page, dedent(text))
    for page in list_pages()
    for text in re.findall(r"^ *```toml\n(.*?)^ *```", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    if "entry-points" not in text  # of a pyproject.toml
]


def complete(text: str) -> str:
    """Add what a part of a file lacks: a store, and a destination."""
    if text.startswith("retry ="):
        text = "".join(
            f"[destinations.d{place}]\nurl = 'memory:'\n{line}\n" for place, line in enumerate(text.splitlines())
        )
    if "[store" not in text and "[tenants" not in text:
        text += "\n[store]\nurl = 'sqlite:///shop.db'\n"
    return text if "[destinations" in text else f"{text}\n[destinations.other]\nurl = 'memory:'\n"


@pytest.mark.parametrize(("page", "text"), _BLOCKS, ids=[f"{page}-{place}" for place, (page, _) in enumerate(_BLOCKS)])
def test_the_program_reads_it(page: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "pillarbox.toml").write_text(complete(text))
    named = {*re.findall(r"\$\{(\w+)\}", text), *re.findall(r"env:(\w+)", text)}
    ran = pillarbox("config", "show", cwd=tmp_path, **dict.fromkeys(named, _SECRET))
    assert (ran.code, ran.err) == (0, ""), page


def test_there_are_such_blocks() -> None:
    assert len(_BLOCKS) > 15
