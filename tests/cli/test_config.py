"""`pillarbox config show`: what is in force, and who said so."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest

from pillarbox.cli.config import show_config
from pillarbox.cli.relay import relay
from tests.support.cli.program import pillarbox
from tests.support.cli.terminal import run_on_terminal

CANARY = "c4nary-s3cret"
FLAGS = {
    "--store": "sqlite:///c.db", "--schema": "c", "--prefix": "c_", "--service": "c", "--duties": "clean",
    "--lease": "7s", "--poll-interval": "7s", "--max-lanes": "7", "--processes": "7", "--batch": "7", "--window": "7",
    "--send-timeout": "7s", "--log-format": "json", "--log-level": "error", "--deliveries-at": "error",
    "--label": "team=shop",
}  # fmt: skip
ELSEWHERE = {"--config", "--to", "--output", "--help", "--wide"}


def shown(*arguments: str, cwd: Path, **extra: str) -> list[tuple[str, str, str | None]]:
    """Every value as (value, origin, where)."""
    ran = pillarbox("config", "show", "-o", "json", *arguments, cwd=cwd, **extra)
    assert (ran.code, ran.err) == (0, "")
    return list(_leaves(json.loads(ran.out)))


def _leaves(document: Any) -> Any:
    if isinstance(document, dict) and document.keys() == {"value", "origin", "where"}:
        yield document["value"], document["origin"], document["where"]
    elif isinstance(document, dict):
        for inner in document.values():
            yield from _leaves(inner)


def variables() -> dict[str, str]:
    return {max(option.opts, key=len): str(option.envvar) for option in show_config.params}


def test_every_flag_is_told_as_a_flag(tmp_path: Path) -> None:
    assert {max(option.opts, key=len) for option in show_config.params} - ELSEWHERE == set(FLAGS)
    given = [word for flag in FLAGS.items() for word in flag]
    environ = {variables()[flag]: "wrong" for flag in FLAGS}

    found = shown(*given, "--to", "a=memory:", cwd=tmp_path, **environ)

    told = {where: value for value, origin, where in found if origin == "flag"}
    assert set(told) == {*FLAGS, "--to"}
    assert told["--lease"] == "7s"


def test_every_flag_has_the_variable_that_its_help_names(tmp_path: Path) -> None:
    environ = {variables()[flag]: text for flag, text in FLAGS.items()}

    found = shown(cwd=tmp_path, PILLARBOX_DESTINATION_A_URL="memory:", **environ)

    told = {where for _, origin, where in found if origin == "environment"}
    assert told == {*environ, "PILLARBOX_DESTINATION_A_URL"}
    shown_by_relay = relay.get_help(click.Context(relay)).split()
    assert all(any(name in word for word in shown_by_relay) for name in environ)


def test_the_file_is_found_here_and_where_it_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "pillarbox.toml").write_text('[relay]\nservice = "here"\n')
    (tmp_path / "other.toml").write_text('[relay]\nservice = "other"\n')

    assert ("here", "file", "pillarbox.toml") in shown(cwd=tmp_path)
    assert ("other", "file", "other.toml") in shown("--config", "other.toml", cwd=tmp_path)
    assert ("other", "file", "other.toml") in shown(cwd=tmp_path, PILLARBOX_CONFIG="other.toml")


@pytest.mark.parametrize("output", ["text", "json", "toml"])
def test_no_secret_is_printed(tmp_path: Path, output: str) -> None:
    (tmp_path / "pillarbox.toml").write_text(
        f'[store]\nurl = "postgresql://app:{CANARY}@db/shop"\n'
        f'[destinations.a]\nurl = "https://a.example/{CANARY}?secret={CANARY}"\nheaders = {{ x-tenant = "{CANARY}" }}\n'
    )

    ran = pillarbox("config", "show", "-o", output, cwd=tmp_path, PILLARBOX_DESTINATION_A_SECRET=CANARY)

    assert ran.code == 0
    assert "postgresql://app:***@db/shop" in ran.out
    assert "https://a.example/…" in ran.out
    assert CANARY not in ran.out + ran.err


def test_text_and_toml_name_the_origin_of_each_value(tmp_path: Path) -> None:
    text = pillarbox("config", "show", "--lease", "7s", cwd=tmp_path, PILLARBOX_RELAY_SERVICE="shop").out
    toml = pillarbox("config", "show", "--lease", "7s", "-o", "toml", cwd=tmp_path, PILLARBOX_RELAY_SERVICE="shop").out

    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["key", "value", "origin"]
    assert ["relay.lease", "7s", "flag", "--lease"] in lines
    assert ["relay.service", "shop", "environment", "PILLARBOX_RELAY_SERVICE"] in lines
    assert ["relay.poll_interval", "1s", "default"] in lines
    assert tomllib.loads(toml)["relay"]["lease"] == "7s"
    assert 'lease = "7s"  # flag --lease' in toml


def test_a_slip_is_one_sentence_and_ends_with_two(tmp_path: Path) -> None:
    (tmp_path / "pillarbox.toml").write_text('[relay]\nleese = "1s"\n')

    ran = pillarbox("config", "show", cwd=tmp_path)

    assert ran.code == 2
    assert ran.sentence == "pillarbox.toml has an unknown key relay.leese: the nearest known is relay.lease."


@pytest.mark.parametrize("columns", [60, 80, 100])
async def test_long_names_fit_the_terminal_and_keep_their_options(tmp_path: Path, columns: int) -> None:
    name = "n" * 80
    (tmp_path / "pillarbox.toml").write_text(
        f'[store]\nurl = "sqlite:///x.db"\n[destinations.{name}]\nurl = "memory:"\n'
    )
    code, seen = await run_on_terminal("config", "show", cwd=tmp_path, columns=columns)
    assert code == 0
    assert max(map(len, seen.splitlines())) <= columns
    assert re.search(r"destinations\.n+…\.handoff_publication ", seen)
    assert name in (await run_on_terminal("config", "show", "--wide", cwd=tmp_path, columns=columns))[1]
