"""Text that others wrote into the tables reaches no terminal as it is: no escape, no forged line, no hidden letter."""

from __future__ import annotations

import json
import re
import time
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from pillarbox.cli._errors import run
from pillarbox.cli._program import pillarbox as program
from tests.support.cli.program import pillarbox
from tests.support.cli.shop import Shop
from tests.support.cli.terminal import run_on_terminal

CSI, OSC, C1, BIDI = "\x1b[2J\x1b[31m", "\x1b]0;owned\x07", "\x9b31m\x85", "\u202egro\u2066\u200f\ufeff"
EVIL = f"{CSI}{OSC}{C1}{BIDI}\r\x08\x7f\u2028evil\nCRITICAL: forged"
_COMMANDS = (
    ("messages", "list"),
    ("messages", "list", "--state", "failed"),
    ("messages", "show", "1", "--payload"),
    ("messages", "show", "2"),
    ("failures",),
    ("status",),
    ("check",),
    ("inbox", "list"),
    ("relays",),
    ("lanes",),
    ("doctor", "--to", "billing=memory:"),
)


@pytest.fixture
def evil(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A shop in whose tables every text holds escapes, with a relay that is alive for half an hour."""
    monkeypatch.setenv("PILLARBOX_RELAY_LEASE", "1h")
    shop.publish(2, to="billing")
    with shop.connect() as tx:
        tx.execute("update pillarbox_outbox set topic = ?1, type = ?1, key = ?1, source = ?1, subject = ?1", (EVIL,))
        tx.execute("update pillarbox_outbox set correlation_id = ?1, destination = ?1", (EVIL,))
        tx.execute("update pillarbox_outbox set headers = ?", (json.dumps({"h" + EVIL: EVIL}),))
        tx.execute("update pillarbox_outbox set payload = ?, content_type = ?", (EVIL.encode(), EVIL))
        tx.execute(
            "insert into pillarbox_relay (relay_id, service, host, pid, version, destinations, reachable, started_at,"
            " expires_at, labels) values ('0192f0c0-0000-7000-8000-000000000001', ?1, ?1, 1, ?1, ?2, ?2, 1, ?3, ?4)",
            (EVIL, json.dumps([EVIL]), int((time.time() + 1_800) * 1_000_000), json.dumps({EVIL: EVIL, "a": EVIL})),
        )
        tx.execute("insert into pillarbox_destination values (?1, ?1, 1, ?1)", (EVIL,))
        tx.execute(
            "insert into pillarbox_inbox (consumer, source, message_id, status, last_error, message)"
            " values (?1, ?1, ?1, 'failed', ?1, x'00')",
            (EVIL,),
        )
        tx.execute(
            "insert into pillarbox_journal (message_id, destination, action, at, by, error, detail)"
            " select message_id, destination, ?1, 1, ?1, ?1, ?1 from pillarbox_outbox",
            (EVIL,),
        )
    shop.fail("id = 2", EVIL)
    return shop


def _find_unprintable(text: str) -> list[str]:
    return [letter for letter in text if not letter.isprintable() and letter != "\n"]


@pytest.mark.parametrize("arguments", _COMMANDS, ids=" ".join)
def test_no_command_passes_an_escape_on(evil: Shop, arguments: tuple[str, ...]) -> None:
    formats = ("text", "json", "jsonl", *(("nagios", "prometheus") if arguments == ("check",) else ()))
    for output in formats:
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            run(program, [*arguments, "--store", f"sqlite:///{evil.file}", "-o", output])
        assert not _find_unprintable(out.getvalue() + err.getvalue()), output
        assert "\nCRITICAL: forged" not in out.getvalue()
        if output == "json":
            assert "evil" in out.getvalue(), err.getvalue()
            json.loads(out.getvalue())


def test_a_line_of_a_payload_cannot_pass_for_a_field(evil: Shop) -> None:
    text = evil.run("messages", "show", "1", "--payload").out
    assert [line for line in text.splitlines() if line.lstrip().startswith("CRITICAL")] == [
        line for line in text.splitlines() if re.match(r" {5,}CRITICAL: forged", line)
    ]


async def test_a_terminal_gets_no_escape_either(evil: Shop) -> None:
    """A terminal's tables are drawn in another way."""
    for arguments in (("messages", "list"), ("relays",)):
        _, screen = await run_on_terminal(
            *arguments, cwd=evil.folder, PILLARBOX_STORE=evil.url, PILLARBOX_RELAY_LEASE="1h"
        )
        assert not _find_unprintable(screen)
        assert "x1b" in screen


def test_the_configuration_and_errors_pass_no_escape_on(tmp_path: Path) -> None:
    text = EVIL.replace("\x00", "")
    for arguments in (
        ("config", "show", "--service", text),
        ("config", "show", "--service", text, "-o", "toml"),
        ("config", "show", "--store", f"sqlite:///{text}"),
        ("status", "--store", f"sqlite:///{text}"),
        ("status", text),
        ("messages", "show", text, "--store", "sqlite:///x.db"),
    ):
        ran = pillarbox(*arguments, cwd=tmp_path)
        assert not _find_unprintable(ran.out + ran.err), arguments


def test_commands_print_through_one_module() -> None:
    folder = Path(__file__).parents[2] / "src/pillarbox/cli"
    users = {
        path.name for path in folder.glob("*.py") if re.search(r"click\.(secho|echo)\(|\bprint\(", path.read_text())
    }
    assert users == {"_output.py"}
