"""The README works as it is printed: its blocks are run in order, in an empty folder, as a newcomer would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.cli.program import environment

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
VARIABLES = environment({"PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))})


class Newcomer:
    """Does what the README says, block by block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, commands: str) -> str:
        """Run the lines in a shell, and stay in the folder where they end; return what they print on stdout."""
        ends = self.folder / ".end"
        ran = subprocess.run(
            ["bash", "-e", "-c", f"{commands}\npwd > {ends}"], cwd=self.folder, env=VARIABLES,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, (commands, ran.stderr)
        self.folder = Path(ends.read_text().strip())
        return ran.stdout

    def save(self, program: str) -> None:
        name = re.match(r"# (\w+\.py)\n", program)
        assert name is not None, "a program begins with the name of its file"
        (self.folder / name[1]).write_text(program)


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    """Somebody who has followed the README to its end."""
    newcomer, printed = Newcomer(tmp_path_factory.mktemp("empty")), ""
    for kind, text in BLOCKS:
        if kind == "sh" and "pip install" in text:
            continue  # replaced by the environment of these tests, where Pillarbox is installed
        match kind:
            case "sh":
                printed = newcomer.run(text)
            case "python":
                newcomer.save(text)
            case "text":
                assert mask(printed) == mask(text)
    return newcomer


def mask(text: str) -> list[list[str]]:
    """Return the words of each line, without times: a slow machine shows other ages."""
    return [re.sub(r"\b\d+(ms|s|m)\b", "TIME", line).split() for line in text.strip().splitlines()]


def test_every_block_works_in_the_order_of_the_page(newcomer: Newcomer) -> None:
    assert newcomer.run("pillarbox messages list --state delivered -o jsonl").count("\n") == 1
    assert newcomer.run("pillarbox messages list --state discarded -o jsonl").count("\n") == 1


def test_every_command_of_the_table_works(newcomer: Newcomer) -> None:
    rows = re.findall(r"^\| (`pillarbox .*?) \|", README, re.MULTILINE)
    commands = [command for row in rows for command in re.findall(r"`(pillarbox [^`]+)`", row)]

    assert len(commands) == 5
    for command in commands:
        options = " --count 1" if "--watch" in command else ""
        newcomer.run(f"{command}{options}" + (" || test $? -eq 6" if "check" in command else ""))  # no relay runs
        newcomer.run("pillarbox resume billing")


def test_the_first_blocks_are_what_a_newcomer_needs() -> None:
    headings = re.findall(r"^## (.*)$", README, re.MULTILINE)

    assert headings[:5] == [
        "Install", "Create the tables", "Write a message", "Deliver it, once in effect", "Watch it",
    ]  # fmt: skip
    assert [kind for kind, _ in BLOCKS][:5] == ["sh", "sh", "python", "sh", "python"]


def test_other_blocks_name_targets_of_make() -> None:
    lines = [line for kind, text in BLOCKS if not kind for line in text.splitlines()]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert lines
    assert all((words := line.split())[0] == "make" and words[1] in targets for line in lines)


@pytest.fixture
def webhook() -> Iterator[tuple[int, list[bytes]]]:
    received: list[bytes] = []

    class Hooks(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["content-length"])))
            self.answer()

        def answer(self) -> None:
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Hooks) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port, received
        server.shutdown()
        thread.join()


def test_the_webhook_on_this_machine_is_reached_with_the_url_of_the_page(
    newcomer: Newcomer, webhook: tuple[int, list[bytes]]
) -> None:
    (url,) = re.findall(r"`(billing=http://127[^`]*)`", README)
    port, received = webhook

    newcomer.run("python shop.py 7")
    newcomer.run(f"pillarbox relay --once --to '{url.replace(':8000', f':{port}')}'")

    assert received == [b'{"order_id":3,"total":"7"}']
