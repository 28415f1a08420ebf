"""`pillarbox init`: a configuration file that says what can be set, and works as it is written."""

from __future__ import annotations

import re
import stat
import tomllib
from pathlib import Path

import pytest

from pillarbox import Outbox
from pillarbox.cli.config import list_entries
from pillarbox.cli.init import build_file
from pillarbox.config import Config
from tests.support.cli.program import pillarbox


def test_the_file_works_and_the_next_steps_are_said(tmp_path: Path) -> None:
    ran = pillarbox("init", "--store", "sqlite:///shop.db", "--to", "mail=handlers:shop:handlers", cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("Wrote pillarbox.toml. Next:\n  pillarbox schema install")
    for line in ran.out.splitlines()[1:]:
        assert line.split()[0] == "pillarbox"
    assert pillarbox("schema", "install", cwd=tmp_path).code == 0
    assert pillarbox("status", cwd=tmp_path).code == 0
    assert Outbox.from_config(tmp_path / "pillarbox.toml") is not None


def test_a_file_that_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "pillarbox.toml").write_text("# mine\n")
    ran = pillarbox("init", cwd=tmp_path)
    assert (ran.code, "is there already" in ran.sentence) == (2, True)
    assert (tmp_path / "pillarbox.toml").read_text() == "# mine\n"
    assert pillarbox("init", "--config", "other.toml", cwd=tmp_path).code == 0
    assert "pillarbox status --config other.toml" in pillarbox(
        "init", "--config", "third.toml", cwd=tmp_path
    ).out.replace("third", "other")


def test_a_comment_shows_the_default_that_is_in_force(tmp_path: Path) -> None:
    text = build_file(store="sqlite:///shop.db", destinations={"mail": "https://mail.example"}, source="/shop")
    without_rate = "\n".join(line for line in text.splitlines() if not line.startswith(("# rate", "# readiness")))
    uncommented = re.sub(r"^# (?=[\w.]+ = )", "", without_rate, flags=re.MULTILINE)
    entries = []
    for name, content in (("plain.toml", text), ("uncommented.toml", uncommented)):
        (tmp_path / name).write_text(content)
        entries.append({entry.path: entry.value for entry in list_entries(Config.load(tmp_path / name, environ={}))})

    assert entries[0] == entries[1]
    assert len(uncommented) < len(without_rate) - 40


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--store", "shop.db"), "given as a URL"),
        (("--store", "oracle://db"), "No installed store"),
        (("--to", "mail=gopher://x"), "No installed transport"),
        (("--to", "mail"), "has no URL"),
        (("--to", "mail=https://a", "--to", "mail=https://b"), "one name"),
        (("--config", "no/such/folder.toml"), "cannot be written"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    ran = pillarbox("init", *arguments, cwd=tmp_path)
    assert (ran.code, expected in ran.sentence) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_a_password_is_neither_shown_nor_readable_by_others(tmp_path: Path) -> None:
    ran = pillarbox("init", "--store", "postgresql://shop:s3cr3t@db.example/shop", cwd=tmp_path)
    assert "holds a password" in ran.err
    assert "s3cr3t" not in ran.out + ran.err
    assert stat.S_IMODE((tmp_path / "pillarbox.toml").stat().st_mode) == 0o600
    reference = "postgresql://shop:${DB_PASSWORD}@db.example/shop"
    plain = pillarbox("init", "--config", "plain.toml", "--store", reference, cwd=tmp_path)
    assert (plain.code, plain.err) == (0, "")
    assert tomllib.loads((tmp_path / "plain.toml").read_text())["store"]["url"] == reference
