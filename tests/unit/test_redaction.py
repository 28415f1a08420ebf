"""Text from elsewhere, before people read it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.redaction import Secret, format_traceback, hide_secrets, is_reference, redact, redact_line, redact_url


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://shop:hunter2@db/shop", "postgresql://shop:***@db/shop"),
        ("amqp://:hun/ter2@mq", "amqp://***"),
        ("password=hunter2, user=shop", "password=***, user=shop"),
        ("DB_PASSWORD: hunter2", "DB_PASSWORD: ***"),
        ('{"api_key": "hun ter2", "a": 1}', '{"api_key": ***, "a": 1}'),
        ("{'client_secret': 'hunter2'}", "{'client_secret': ***}"),
        ("Authorization: Bearer hunter2hunter2 x", "Authorization: *** x"),
        ("sent bearer hunter2hunter2", "sent bearer ***"),
        ("key whsec_hunter2+/= refused", "key *** refused"),
        ("?access_token=hunter2&a=1", "?access_token=***"),
        ("secret=('hunter2', \"hunter3\"), a=1", "secret=***), a=1"),
        ('{"tokens": ["hunter2", "hunter3"], "a": 1}', '{"tokens": ***], "a": 1}'),
        ("Cookie: a=b; session=hunter2", "Cookie: ***"),
        ("Set-Cookie: session=hunter2; Path=/", "Set-Cookie: ***"),
        ("Authorization: AWS4-HMAC-SHA256 Credential=a, Signature=hunter2", "Authorization: ***"),
        ("{'cookie': 'a=b; c=hunter2', 'a': 1}", "{'cookie': ***, 'a': 1}"),
        ("near \"alter role shop password 'hunter2' nologin\"", 'near "alter role shop password *** nologin"'),
        ("create user shop identified by 'hun''ter2'", "create user shop identified by ***"),
        ("psql --password hunter2 -h db", "psql --password *** -h db"),
        (
            "ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'shop' 'hunter2'",
            "ERR unknown command 'HELLO', with args beginning with: ***",
        ),
        ("nkey=hunter2 jwt=hunter2 pw=hunter2 AccountKey=hunter2", "nkey=*** jwt=*** pw=*** AccountKey=***"),
        ("to amqp://shop:5432 hunter2@mq", "to amqp://***"),
        ("token ghp_hunter2hunter2hunter2", "token ***"),
        ("nothing of the kind: 5 tokens", "nothing of the kind: 5 tokens"),
        ("https://shop.example/a@b", "https://***"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, shown: str) -> None:
    assert redact(text) == shown


@given(st.text(alphabet=st.characters(), max_size=2_000))
def test_a_line_is_one_line(text: str) -> None:
    line = redact_line(text)
    assert len(line) <= 300
    assert not any(character < " " or "\x7f" <= character <= "\x9f" for character in line)
    assert len(line.splitlines()) <= 1


@pytest.mark.parametrize(
    "piece", ["x", "-", "password", "://:", "password=", 'password="', "bearer ", "whsec_", " ", "@"]
)
def test_a_long_text_does_not_take_long(piece: str) -> None:
    """With repetitions that are not bounded these take minutes; the timeout of the test run is the judge."""
    redact(piece * (1_000_000 // len(piece)))
    assert len(redact_line(piece * 1_000_000)) <= 300


def test_the_end_of_a_long_trace_is_kept() -> None:
    try:
        raise ValueError("x" * 20_000 + " the end")
    except ValueError as error:
        text = format_traceback(error)
    assert len(text) <= 8_000
    assert text.endswith(" the end\n")


def test_half_a_secret_at_the_cut_is_not_shown() -> None:
    """Long secrets before it shrink to a few stars, so that the cut comes into view."""
    before = f"password={'a' * 190} " * 11
    for filler in range(100, 200):
        text = f"{before}{'x' * filler} amqp://shop:{'hunter2' * 300}@mq"
        assert "hunter" not in redact_line(text, limit=300)
        seed = f"{before}{'x' * filler} SU{'A2B7' * 14}"  # one that is known by its length
        assert "A2B7" not in redact_line(seed, limit=300)


def test_what_just_fits_is_not_cut() -> None:
    assert redact_line("x" * 300) == "x" * 300
    assert redact_line("x" * 301) == "x" * 299 + "…"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("amqp://shop@mq/x", "amqp://shop@mq/x"),
        ("nats://hunter2@mq", "nats://***@mq"),
        ("https://hunter2@shop.example/x", "https://***@shop.example/x"),
    ],
)
def test_a_login_without_a_colon_may_be_a_token(url: str, shown: str) -> None:
    assert redact_url(url) == shown


@pytest.mark.parametrize(
    ("text", "secrets", "shown"),
    [
        ("refused hunter2hunter", ["hunter2", "hunter2hunter"], "refused ***"),
        ("refused hunter2hunter", ["hunter2hunter", "hunter2"], "refused ***"),
        ("abcdefgh", ["abcdef", "cdefgh"], "***"),
        ("x abcdefgh y", ["abcdefgh", "cdef"], "x *** y"),
        ("x abcdabcd y", ["abcd"], "x ****** y"),
        ("aaaaaa", ["aaaa"], "***"),
        ("abc stays", ["abc", ""], "abc stays"),
    ],
)
def test_secrets_that_overlap_leave_nothing_of_each_other(text: str, secrets: list[str], shown: str) -> None:
    assert hide_secrets(text, secrets) == shown


@pytest.mark.parametrize("value", ["env:NAME/hunter2", "file:/x|hunter2", "${A}hunter2", "env:1hunter2"])
def test_a_value_in_a_text_that_only_begins_like_a_reference_is_hidden(value: str) -> None:
    assert redact(f"give password={value}, then") == "give password=***, then"
    assert redact("give password=env:NAME, then") == "give password=env:NAME, then"


@pytest.mark.parametrize(
    "value", ["env:NAME hunter2", "env:NAME\nhunter2", "file:/x hunter2", "env:1hunter2", "${A}hunter2"]
)
def test_a_value_that_only_begins_like_a_reference_is_hidden(value: str) -> None:
    assert str(Secret(value)) == "***"
    assert not is_reference(value)


@pytest.mark.parametrize("value", ["env:NAME", "file:/run/secrets/x-1", "${NAME}"])
def test_a_reference_is_shown(value: str) -> None:
    assert str(Secret(value)) == value


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_the_line_break_at_the_end_of_a_file_is_no_part_of_its_secret(ending: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(f" hunter2 {ending}".encode())
    assert Secret(f"file:{file}").read(option="token") == " hunter2 "
