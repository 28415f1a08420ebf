"""Completion in the shells: each script is printed, and asks the program, which knows its words."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
from click.shell_completion import ShellComplete

from pillarbox.cli._program import pillarbox as program
from tests.support.cli.program import PROGRAM, environment, pillarbox
from tests.support.cli.shop import Shop

DOCS: Final = Path(__file__).parents[2] / "docs" / "cli.md"
SHELLS: Final = ("bash", "zsh", "fish")


@pytest.mark.parametrize(
    ("words", "unfinished", "completed"),
    [
        ([], "re", ["relay", "relays", "resume"]),
        (["messages"], "re", ["redrive", "replay"]),
        (["messages", "list"], "--near", ["--near-failure"]),
        (["messages", "list", "--state"], "d", ["delivered", "discarded"]),
        (["check", "-o"], "n", ["nagios"]),
    ],
)
def test_commands_options_and_values_are_completed(words: list[str], unfinished: str, completed: list[str]) -> None:
    asking = ShellComplete(program, {}, "pillarbox", "_PILLARBOX_COMPLETE")
    assert [one.value for one in asking.get_completions(words, unfinished)] == completed


@pytest.mark.parametrize(
    ("shell", "place", "answer"),
    [
        ("bash", "2", "plain,redrive\nplain,replay\n"),
        ("zsh", "2", "plain\nredrive\nSend failed or held messages"),
        ("fish", "re", "plain,redrive\tSend failed or held messages"),
    ],
)
def test_the_program_answers_each_shell_in_its_own_way(shell: str, place: str, answer: str) -> None:
    told = pillarbox(COMP_WORDS="pillarbox messages re", COMP_CWORD=place, _PILLARBOX_COMPLETE=f"{shell}_complete")
    assert (told.code, told.err) == (0, "")
    assert told.out.startswith(answer)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_printed_and_the_docs_say_where_to_put_it(shell: str) -> None:
    told = pillarbox("completion", shell)
    assert (told.code, told.err) == (0, "")
    assert f"_PILLARBOX_COMPLETE={shell}_complete" in told.out
    assert told.out == pillarbox(_PILLARBOX_COMPLETE=f"{shell}_source").out
    assert f"pillarbox completion {shell} >" in DOCS.read_text()


def test_the_shell_is_the_one_that_the_person_uses() -> None:
    assert pillarbox("completion", SHELL="/usr/bin/zsh").out == pillarbox("completion", "zsh").out
    unknown = pillarbox("completion", SHELL="/bin/tcsh")
    assert (unknown.code, "bash, zsh or fish" in unknown.err) == (2, True)


@pytest.mark.parametrize(
    "words",
    ["pause", "resume", "messages redrive --to", "messages list --destination", "failures --destination", "relay --to"],
)
def test_names_of_destinations_are_completed(shop: Shop, words: str) -> None:
    shop.publish(1, to="billing")
    shop.publish(1, to="mail")
    (shop.folder / "pillarbox.toml").write_text(
        '[store]\nurl = "sqlite:///shop.db"\n[destinations.bills]\nurl = "https://bills.example"\n'
    )
    typed = f"pillarbox {words} b"
    told = pillarbox(
        cwd=shop.folder, COMP_WORDS=typed, COMP_CWORD=str(len(typed.split()) - 1), _PILLARBOX_COMPLETE="bash_complete"
    )
    assert (told.out.split(), told.err) == (["plain,billing", "plain,bills"], "")


def test_what_fails_while_a_name_is_completed_is_not_shown(tmp_path: Path) -> None:
    variables = {"COMP_WORDS": "pillarbox pause ", "COMP_CWORD": "2", "_PILLARBOX_COMPLETE": "bash_complete"}
    file = tmp_path / "pillarbox.toml"
    file.write_text('[store]\nurl = "nosuch://x"\n[destinations.mail]\nurl = "x"\n')
    told = pillarbox(cwd=tmp_path, **variables)
    assert (told.out, told.err) == ("plain,mail\n", "")
    file.write_text("[broken")
    told = pillarbox(cwd=tmp_path, **variables)
    assert (told.out.strip(), told.err) == ("", "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash: install it, or believe the other tests")
def test_bash_itself_completes_with_it(tmp_path: Path) -> None:
    script = tmp_path / "pillarbox.bash"
    script.write_text(pillarbox(_PILLARBOX_COMPLETE="bash_source").out)
    asked = f"source {script}; COMP_WORDS=(pillarbox messages re); COMP_CWORD=2; "
    asked += '_pillarbox_completion pillarbox; echo "${COMPREPLY[*]}"; complete -p pillarbox'
    path = os.pathsep.join((str(Path(PROGRAM).parent), os.environ["PATH"]))
    told = subprocess.run(
        ["bash", "--norc", "-c", asked], check=True, capture_output=True, text=True, env=environment({"PATH": path})
    ).stdout.splitlines()
    assert told[0] == "redrive replay"
    assert "-F _pillarbox_completion" in told[1]


@pytest.mark.parametrize("shell", SHELLS)
def test_names_from_the_tables_that_a_shell_would_take_apart_are_left_out(shop: Shop, shell: str) -> None:
    for name in ("bi\x00lling", "bill\nplain,rm", "bi ll", "bi$(id)", "bi\x1b[2J"):
        shop.publish(1, to="billing")
        with shop.connect() as tx:
            tx.execute("update pillarbox_outbox set destination = ? where destination = 'billing'", (name,))
    shop.publish(1, to="billing")
    words = {"COMP_WORDS": "pillarbox pause bi", "COMP_CWORD": "bi" if shell == "fish" else "2"}
    told = shop.run(**words, _PILLARBOX_COMPLETE=f"{shell}_complete")
    assert told.code == 0
    assert "billing" in told.out
    assert [part for part in ("\x00", "rm", " ll", "$(id)", "\x1b") if part in told.out] == []
