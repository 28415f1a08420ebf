"""Messages as they go over the wire to Redis."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.brokers.redis.encoding import Encoder, encode_command, encode_wait, parse_claim_reply
from pillarbox.brokers.redis.settings import Durability
from pillarbox.cloudevents import REDIS, from_message, read, to_binary
from pillarbox.errors import MessageRejected
from pillarbox.message import Message
from pillarbox.testing.samples import sample

ENCODER = Encoder(key=lambda message: message.topic)
LIMIT = 1024


def parse_words(packed: bytes) -> list[bytes]:
    """As a server reads a command."""
    head, _, rest = packed.partition(b"\r\n")
    found = []
    for _ in range(int(head.removeprefix(b"*"))):
        size, _, rest = rest.partition(b"\r\n")
        length = int(size.removeprefix(b"$"))
        found.append(rest[:length])
        assert rest[length : length + 2] == b"\r\n"
        rest = rest[length + 2 :]
    assert rest == b""
    return found


def parse_added(
    message: Message, encoder: Encoder = ENCODER, *, before: int = 3
) -> tuple[list[bytes], dict[str, bytes]]:
    """What stands before the fields, and the fields."""
    found = parse_words(b"".join(encoder.encode(message, limit=LIMIT).pieces))
    fields = found[before:]
    return found[:before], {fields[i].decode(): fields[i + 1] for i in range(0, len(fields), 2)}


_texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=20)


@given(key=st.none() | _texts, subject=st.none() | _texts, causation=st.none() | _texts, source=_texts, topic=_texts)
def test_an_entry_is_what_the_binding_says(
    key: str | None, subject: str | None, causation: str | None, source: str, topic: str
) -> None:
    headers = {"tenant": "a\r\nb", "traceparent": "00-1-2-01"}
    message = sample(key=key, subject=subject, causation_id=causation, source=source, topic=topic, headers=headers)
    expected, body = to_binary(message, binding=REDIS)
    before, fields = parse_added(message)
    assert before == [b"XADD", topic.encode(), b"*"]
    assert fields.pop("data") == body
    assert fields == {name: value.encode() for name, value in {**expected, "traceparent": "00-1-2-01"}.items()}


def test_every_field_can_be_read_back() -> None:
    message = sample(key="Žižkov", subject="s", causation_id="c", headers={"tenant": "a", "tracestate": "x=1"})
    _, fields = parse_added(message)
    got = read(fields, fields.pop("data"), binding=REDIS)
    ours = from_message(message)
    assert (got.message_id, got.key, got.subject, got.causation_id) == (ours.message_id, "Žižkov", "s", "c")
    assert got.headers["tracestate"] == "x=1"


def test_structured_mode_is_one_document() -> None:
    encoder = msgspec.structs.replace(ENCODER, mode="structured")
    message = sample(headers={"tenant": "a", "traceparent": "00-1-2-01"})
    _, fields = parse_added(message, encoder)
    data = fields.pop("data")
    assert fields == {"content-type": b"application/cloudevents+json", "traceparent": b"00-1-2-01"}
    assert read({"content-type": fields["content-type"]}, data, binding=REDIS).headers["tenant"] == "a"


def test_options_of_the_command() -> None:
    encoder = msgspec.structs.replace(ENCODER, create=False, maxlen=1000)
    before, _ = parse_added(sample(), encoder, before=7)
    assert before == [b"XADD", b"orders", b"NOMKSTREAM", b"MAXLEN", b"~", b"1000", b"*"]


@pytest.mark.parametrize("name", ["data", "Data", "content-type", "ce-id", "CE-X"])
def test_a_header_that_is_a_field_of_ours_is_rejected(name: str) -> None:
    with pytest.raises(MessageRejected, match="header"):
        ENCODER.encode(sample(headers={name: "x"}), limit=LIMIT)


def test_what_is_too_large_is_rejected() -> None:
    ENCODER.encode(sample(payload=b"x" * LIMIT), limit=LIMIT)
    with pytest.raises(MessageRejected, match="1025 bytes, and the server takes at most 1024"):
        ENCODER.encode(sample(payload=b"x" * (LIMIT + 1)), limit=LIMIT)


def test_commands_count_bytes() -> None:
    assert encode_command("GET", "ž") == b"*2\r\n$3\r\nGET\r\n$2\r\n\xc5\xbe\r\n"


def test_waiting() -> None:
    assert encode_wait(Durability(), milliseconds=5) is None
    assert parse_words(encode_wait(Durability(False, 2), milliseconds=5) or b"") == [b"WAIT", b"2", b"5"]
    assert parse_words(encode_wait(Durability(True, 2), milliseconds=5) or b"") == [b"WAITAOF", b"1", b"2", b"5"]


def test_what_was_trimmed_is_told_by_some_servers_alone() -> None:
    """Redis 6.2 has nothing in its place, and keeps it."""
    entry = [b"1-0", [b"data", b"x"]]
    assert parse_claim_reply([b"0-0", [entry], [b"2-0"]]).trimmed == ["2-0"]
    old = parse_claim_reply([b"5-0", [entry, None]])
    assert (old.cursor, [delivery.id for delivery in old.deliveries], old.trimmed) == ("5-0", ["1-0"], [])
