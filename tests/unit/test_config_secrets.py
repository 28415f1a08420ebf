"""No value that `config show` lists shows a secret, whatever its key is."""

from __future__ import annotations

from pathlib import Path

import pytest

from pillarbox.cli.config import list_entries
from pillarbox.config import Config
from pillarbox.settings import format_key
from tests.support.cli.program import pillarbox

CANARY = "c4nary-p4ssw0rd"
URL = f"https://ann:{CANARY}@jaeger.example/trace/{{trace_id}}?token={CANARY}&orgId=1"
FILE = f"""
[store]
url = "postgresql://app:{CANARY}@db/shop"
[stores.eu]
url = "mysql://app:{CANARY}@db/shop"
[tenants]
store = "postgresql://u:{CANARY}@h/{{tenant}}"
query = "select name from t where password = '{CANARY}'"
directory = "postgresql://u:{CANARY}@h/d"
[outbox]
source = "https://ann:{CANARY}@shop"
[relay]
service = "{URL}"
labels = {{ token = "{CANARY}", where = "{URL}" }}
[relay.retention]
archive = "s3://key:{CANARY}@bucket/x"
[dashboard]
trace_url = "{URL}"
environment = "{URL}"
proxy_header = "token={CANARY}"
[destinations.a]
url = "https://h.example/hooks?secret={CANARY}"
headers.authorization = "env:AUTH {CANARY}"
[destinations.b]
url = "https://h.example/hooks"
secret = ["env:1{CANARY}", "file:/x {CANARY}", "env:GOOD"]
query.code = "env:A\\n{CANARY}"
[consumers.m]
receiver = "amqp://u:{CANARY}@h/?queue=x"
"""


def test_every_text_that_can_be_set_is_redacted(tmp_path: Path) -> None:
    file = tmp_path / "pillarbox.toml"
    file.write_text(FILE)
    entries = {format_key(one.path): one.value for one in list_entries(Config.load(file, environ={}))}
    assert [key for key, value in entries.items() if CANARY in str(value)] == []
    assert entries["dashboard.trace_url"] == "https://ann:***@jaeger.example/trace/{trace_id}?token=***"
    assert "env:GOOD" in str(entries["destinations.b.secret"])


@pytest.mark.parametrize("output", ["text", "json", "jsonl", "toml"])
@pytest.mark.parametrize("wide", [[], ["--wide"]], ids=["", "wide"])
def test_no_output_shows_one(tmp_path: Path, output: str, wide: list[str]) -> None:
    (tmp_path / "pillarbox.toml").write_text(FILE)
    ran = pillarbox("config", "show", "-o", output, *wide, cwd=tmp_path)
    assert ran.code == 0, ran
    assert CANARY not in ran.out + ran.err
