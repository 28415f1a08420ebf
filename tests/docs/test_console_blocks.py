"""What the pages show of a terminal is what the program prints today.

`PILLARBOX_REWRITE_SCREENS=1` writes the blocks again.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.cli.screens import REWRITE, SCREENS, mask
from tests.support.docs.console_blocks import Block, list_blocks, rewrite_block, run_block

BLOCKS = list(list_blocks())
RUN = [block for block in BLOCKS if block.note.startswith("run: ")]


def name(block: Block) -> str:
    return f"{block.page}:{block.line}"


@pytest.mark.parametrize("block", BLOCKS, ids=name)
def test_every_console_block_is_run_or_says_why_not(block: Block) -> None:
    is_reason = re.fullmatch(r"not run: \S.{10,}", block.note)
    assert block.note.startswith("run: ") or is_reason or (SCREENS / f"{block.note}.txt").exists(), (
        f"{name(block)}: write `<!-- run: empty -->`, or `<!-- not run: the reason -->`, above this block"
    )


@pytest.mark.parametrize("block", RUN, ids=name)
def test_the_block_shows_what_the_program_prints(block: Block, tmp_path: Path) -> None:
    seen = run_block(block, tmp_path)
    if REWRITE:
        rewrite_block(block, seen)
    else:
        assert mask(block.text) == mask(seen)
    if "terminal" in block.note and "--wide" not in block.text:
        assert [line for line in seen.splitlines() if len(line) > 80 and not line.startswith("$ ")] == []
