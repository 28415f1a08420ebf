"""Which answer belongs to which message: every order in which a broker may give them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest
from pamqp import commands
from pamqp.base import Frame
from pamqp.frame import marshal
from pamqp.header import ContentHeader

from pillarbox.brokers.rabbitmq.amqp import BODY, split_frames
from pillarbox.brokers.rabbitmq.connection import Channel, Connection
from pillarbox.brokers.rabbitmq.encoding import EncodedMessage
from pillarbox.brokers.rabbitmq.errors import DUPLICATE, NACKED, Answer, Broken, Closed, NotAmqp, NotAnswered
from pillarbox.brokers.rabbitmq.transport import Publisher
from pillarbox.brokers.send_batch import DELIVERED, SendBatch
from pillarbox.contracts.transport import Outcome


class Wire:
    """Takes what is written, and lets the channel hear what a broker would say."""

    def __init__(self) -> None:
        self.written = b""
        self.reason: Exception | None = None

    def write(self, data: bytes) -> None:
        self.written += data

    def forget_channel(self, number: int) -> None: ...


@pytest.fixture
async def wire() -> Wire:
    return Wire()


@pytest.fixture
async def publisher(wire: Wire) -> Publisher:
    return Publisher(Channel(cast("Connection", wire), 1))


def encoded(*ids: str, size: int = 1) -> list[EncodedMessage]:
    return [EncodedMessage(one, "shop", "orders", size, one.encode()) for one in ids]


def say(publisher: Publisher, *frames: Frame | ContentHeader) -> None:
    for frame in frames:
        for kind, _, payload in split_frames(bytearray(marshal(frame, 1))):
            publisher._channel.receive(kind, payload)


def returned(message_id: str | None) -> Sequence[Frame | ContentHeader]:
    properties = commands.Basic.Properties(message_id=message_id)
    return commands.Basic.Return(312, "NO_ROUTE", "shop", "orders"), ContentHeader(0, 1, properties)


def kinds(batch: SendBatch[Answer]) -> str:
    """A letter per answer: + delivered, - not, r returned, i interrupted, . none yet."""
    letters = {DELIVERED: "+", NACKED: "-", DUPLICATE: "2", None: "."}
    return "".join(
        "i" if isinstance(answer, NotAnswered) else "r" if answer and answer.missing else letters[answer]
        for answer in batch.answers
    )


async def test_answers_come_one_by_one_or_for_many(publisher: Publisher, wire: Wire) -> None:
    batch = publisher.publish(encoded("a", "b", "c", "d", "e"))
    assert wire.written == b"abcde"
    say(publisher, commands.Basic.Ack(2))
    assert kinds(batch) == ".+..."
    say(publisher, commands.Basic.Nack(3, multiple=True))
    assert kinds(batch) == "-+-.."
    assert not batch.done.done()
    say(publisher, commands.Basic.Ack(5, multiple=True))
    assert kinds(batch) == "-+-++"
    assert batch.done.done()


async def test_tags_go_on_from_send_to_send(publisher: Publisher) -> None:
    first, second = publisher.publish(encoded("a", "b")), publisher.publish(encoded("c"))
    say(publisher, commands.Basic.Ack(3), commands.Basic.Nack(2), commands.Basic.Ack(1))
    assert (kinds(first), kinds(second)) == ("+-", "+")


async def test_a_message_that_comes_back_is_not_delivered_whatever_its_ack_says(publisher: Publisher) -> None:
    batch = publisher.publish(encoded("a", "b", "c"))
    say(publisher, *returned("b"))
    publisher._channel.receive(BODY, b"x")
    say(publisher, commands.Basic.Ack(3, multiple=True))
    assert kinds(batch) == "+r+"


async def test_a_message_that_came_back_can_be_sent_again_before_its_ack(publisher: Publisher) -> None:
    first = publisher.publish(encoded("a"))
    say(publisher, *returned("a"))
    second = publisher.publish(encoded("a"))
    say(publisher, commands.Basic.Ack(1))
    assert (kinds(first), kinds(second)) == ("r", ".")
    say(publisher, commands.Basic.Ack(2))
    assert kinds(second) == "+"


@pytest.mark.parametrize("message_id", ["z", None])
async def test_what_comes_back_and_is_not_known_is_no_delivery(publisher: Publisher, message_id: str | None) -> None:
    """Its ack would say that some message was delivered, and nobody knows which one was not."""
    publisher.publish(encoded("a"))
    with pytest.raises(NotAmqp):
        say(publisher, *returned(message_id))


async def test_one_id_is_never_under_way_twice(publisher: Publisher, wire: Wire) -> None:
    batches = [publisher.publish(encoded("a")), publisher.publish(encoded("a", "b")), publisher.publish(encoded("a"))]
    other = publisher.publish(encoded("a", size=2))
    assert wire.written == b"ab"
    say(publisher, commands.Basic.Ack(2, multiple=True))
    assert [kinds(batch) for batch in (*batches, other)] == ["+", "++", "+", "2"]


async def test_what_has_an_outcome_already_is_not_sent(publisher: Publisher, wire: Wire) -> None:
    rejected = Outcome(False, "no", rejected=True)
    batch = publisher.publish([rejected, *encoded("a")])
    assert wire.written == b"a"
    assert not batch.done.done()
    assert publisher.publish([rejected]).done.done()


async def test_the_end_of_the_channel_interrupts_what_is_under_way(publisher: Publisher) -> None:
    batch = publisher.publish(encoded("a", "b"))
    close = commands.Channel.Close(404, "NOT_FOUND - no exchange 'shop' in vhost '/'", 60, 40)
    say(publisher, commands.Basic.Ack(1), close)
    assert kinds(batch) == "+i"
    assert isinstance(publisher.reason, Closed)
    with pytest.raises(Closed):
        publisher.publish(encoded("c"))


async def test_the_end_of_the_connection_does_too(publisher: Publisher) -> None:
    batch = publisher.publish(encoded("a"))
    publisher._channel.end(Broken("reset"))
    assert kinds(batch) == "i"
    say(publisher, commands.Basic.Ack(1))  # too late, and no harm


async def test_nobody_may_wait_for_an_answer_any_more(publisher: Publisher) -> None:
    batch = publisher.publish(encoded("a"))
    batch.done.cancel()
    say(publisher, commands.Basic.Ack(1))
    await asyncio.sleep(0)


async def test_many_large_messages_are_written_in_pieces(publisher: Publisher, wire: Wire) -> None:
    large = [EncodedMessage(str(number), "", "", 0, bytes([number]) * 200_000) for number in range(5)]
    publisher.publish(large)
    assert wire.written == b"".join(message.frames for message in large)
