"""Ids of incoming messages that an inbox can keep."""

from __future__ import annotations

import pytest

from pillarbox.cloudevents import AMQP
from pillarbox.contracts.receiver import FallbackIdentity, IncomingMessage
from pillarbox.decoding import decode_incoming, encode_incoming, to_cloudevent, to_usable_id
from pillarbox.message import MAX_TEXT


@pytest.mark.parametrize("text", ["m-1", "ä" * (MAX_TEXT // 2), "urn:uuid:1 with spaces"])
def test_an_id_that_can_be_kept_is_kept(text: str) -> None:
    assert to_usable_id(text) == text


@pytest.mark.parametrize("text", ["x" * (MAX_TEXT + 1), "ä" * MAX_TEXT, "a\x00b", "a\nb", "\ud800"])
def test_another_is_a_digest_of_its_own(text: str) -> None:
    assert to_usable_id(text).startswith("sha256:")
    assert to_usable_id(text) == to_usable_id(text)
    assert to_usable_id(text) != to_usable_id(f"{text}.")


def test_a_kept_message_comes_back_whole_and_as_one_that_was_delivered_before() -> None:
    identity = FallbackIdentity(message_id="1", source="rabbitmq:orders", type="order", topic="orders")
    came = IncomingMessage(headers={"a": 1, "b": "c"}, body=b"\x00", binding=AMQP, fallback=identity, token=object())
    back = decode_incoming(encode_incoming(came))
    assert (back.headers, back.body, back.binding, back.fallback) == (came.headers, came.body, AMQP, identity)
    assert (came.redelivered, back.redelivered) == (False, True)


@pytest.mark.parametrize("text", ["x" * 2_000, "ä" * 600])
def test_a_correlation_id_that_is_too_long_in_bytes_becomes_its_digest(text: str) -> None:
    """A handler publishes with it, and the table has room for so many bytes."""
    identity = FallbackIdentity(message_id="1", source="s", type="t", topic="t")
    received = IncomingMessage(headers={"correlation-id": text}, body=b"", binding=AMQP, fallback=identity)
    assert to_cloudevent(received).correlation_id == to_usable_id(text) != text
