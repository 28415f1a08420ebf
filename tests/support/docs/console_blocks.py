"""Console blocks of the docs: run in a folder, compared with what they show, or rewritten.

A comment above each block says how it is run, for example `<!-- run: shop -->`:

| comment | meaning |
|---|---|
| `run: empty`, `run: installed`, `run: shop` | run without a terminal, on that store |
| `run: leese` | with a misspelled key in the file |
| `run: shop, terminal` | run on a terminal of 80 columns |
| `run: shop, terminal, plain` | the same, without rich |
| `not run: …` | the reason why not |
| `01-check-before` | a screen of `tests/cli/test_screens.py` |
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from tests.support.cli import screens
from tests.support.cli.program import forbid_imports, pillarbox
from tests.support.cli.shop import Shop
from tests.support.cli.terminal import run_on_terminal

__all__ = ["ROOT", "Block", "list_blocks", "list_pages", "rewrite_block", "run_block"]

ROOT: Final = Path(__file__).parents[3]
_BLOCK: Final = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*) -->\n)?^```console\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_HOURS: Final = 2
_OLD: Final = (
    "https://billing.example/hooks/orders answered 422 Unprocessable Entity. It said: no account for this customer"
)
_BUG: Final = "https://billing.example/hooks/orders answered 500 Internal Server Error. It said: KeyError: 'total'"


@dataclass(frozen=True)
class Block:
    """A console block, the page that it is on, and the note above it."""

    page: str
    line: int
    note: str
    text: str

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Each command without its `$ `, and the output below it."""
        parts = re.split(r"^\$ (.*)\n", self.text, flags=re.MULTILINE)[1:]
        return list(zip(parts[::2], parts[1::2], strict=True))


def list_pages() -> list[str]:
    """List the pages that users read."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(page.relative_to(ROOT)) for page in pages]


def list_blocks() -> Iterator[Block]:
    """List the console blocks of all pages."""
    for page in list_pages():
        text = (ROOT / page).read_text("utf-8")
        for found in _BLOCK.finditer(text):
            yield Block(page, text[: found.start("text")].count("\n"), found["note"] or "", found["text"])


def run_block(block: Block, folder: Path) -> str:
    """Run the commands of a block in a folder; return the block as it should be."""
    state, *how = block.note.removeprefix("run: ").split(", ")
    shop = Shop(folder)
    if state == "leese":
        (folder / "pillarbox.toml").write_text('[relay]\nleese = "1s"\n')
    if state in ("installed", "shop"):
        asyncio.run(shop.install())
    if state == "shop":
        _fill(shop)
    path = {"PYTHONPATH": forbid_imports(folder, "rich")} if "plain" in how else {}
    seen = ""
    for line, _ in block.commands:
        words = shlex.split(line)
        given = [word.split("=", 1) for word in takewhile(lambda word: "=" in word, words)]
        words = words[len(given) :]
        assert words[0] == "pillarbox", f"{block.page}:{block.line}: only `pillarbox` can be run"
        url = {} if "--store" in words else {"PILLARBOX_STORE": shop.url}
        extra: dict[str, Any] = {"PILLARBOX_BY": "ann", **url, **path, **dict(given)}
        if "terminal" in how:
            _, text = asyncio.run(run_on_terminal(*words[1:], cwd=folder, columns=80, rows=24, **extra))
        else:
            ran = pillarbox(*words[1:], cwd=folder, **extra)
            text = ran.out + ran.err
        seen += f"$ {line}\n{text}"
    return re.sub(r"\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d UTC)", r"2026-01-31 \1", seen)


def rewrite_block(block: Block, text: str) -> None:
    """Write what a block should be to its page."""
    page = ROOT / block.page
    whole = page.read_text("utf-8")
    old = f"<!-- {block.note} -->\n```console\n{block.text}```"
    assert whole.count(old) == 1
    page.write_text(whole.replace(old, f"<!-- {block.note} -->\n```console\n{text}```"), "utf-8")


def _fill(shop: Shop) -> None:
    """Fill the store as after a bad day: two causes of failure, a backlog, and names of every length."""
    shop.publish(60, to="billing", keys=60)
    shop.publish(3, to="warehouse-of-the-north-east")
    shop.publish(1, to="mail")
    shop.fail("destination = 'billing' and id <= 3", f"{_OLD}, who was removed by the import of the old shop")
    shop.fail("destination = 'billing' and id = 4", _BUG)
    with shop.connect() as tx:
        moved = f"{_HOURS * 3600 * 1_000_000 + 10_000_000}"
        tx.execute("delete from pillarbox_outbox where destination = 'billing' and id > 6")
        tx.execute(f"update pillarbox_outbox set created_at = created_at - {moved}")
        tx.execute(f"update pillarbox_history set created_at = created_at - {moved}, status_at = status_at - {moved}")


def mask(text: str) -> str:
    """Replace what differs from run to run."""
    return screens.mask(text)
