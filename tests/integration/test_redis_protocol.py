"""Replies that a real server gives only now and then, in the midst of a batch."""

from __future__ import annotations

import pytest

from pillarbox.brokers.factory import transport_from_url
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.testing.samples import sample
from tests.support.redis_script import CUT, SILENCE, scripted

DELIVERED = Outcome(delivered=True)
ID = b"+1700000000000-0"


async def sent(*replies: bytes, count: int = 3, **options: object) -> list[Outcome]:
    async with scripted(*replies) as url:
        transport = transport_from_url(url, options={"timeout": "5s"} | options)
        await transport.open()
        try:
            return list(await transport.send([sample(key=None) for _ in range(count)]))
        finally:
            await transport.close()


async def test_what_is_not_answered_in_time_does_not_hurt_what_is() -> None:
    answered, *late = await sent(ID, SILENCE, timeout="300ms")
    assert answered == DELIVERED
    assert [(one.delivered, one.lost) for one in late] == [(False, False)] * 2
    assert "no answer within 0.3 s" in (late[0].error or "")


async def test_what_is_cut_after_others_were_answered_is_lost() -> None:
    answered, *cut = await sent(ID, CUT)
    assert answered == DELIVERED
    assert [one.lost for one in cut] == [True, True]


async def test_a_cut_before_any_answer() -> None:
    with pytest.raises(TransportUnavailable) as cut:
        await sent(CUT)
    assert cut.value.mid_send


async def test_a_refusal_hurts_only_its_own_message() -> None:
    outcomes = await sent(ID, b"-OOM command not allowed", ID)
    assert [one.delivered for one in outcomes] == [True, False, True]


@pytest.mark.parametrize("refusal", [b"-NOAUTH Authentication required.", b"-LOADING Redis is loading"])
async def test_what_ends_the_connection_to_the_client_alone_is_an_outage(refusal: bytes) -> None:
    with pytest.raises(TransportUnavailable) as away:
        await sent(refusal, refusal, refusal)
    assert not away.value.mid_send
    answered, *others = await sent(ID, refusal, refusal)
    assert answered == DELIVERED
    assert [(one.lost, one.not_now) for one in others] == [(False, True), (False, True)]


@pytest.mark.parametrize(
    "words",
    ["READONLY replica", "NOREPLICAS few", "MISCONF disk", "MOVED 1 a:1", "ASK 1 a:1", "MASTERDOWN away"],
)
async def test_a_state_in_which_nothing_is_taken_is_an_outage(words: str) -> None:
    with pytest.raises(TransportUnavailable, match=words.partition(" ")[0]) as away:
        await sent(*[f"-{words}".encode()] * 3)
    assert not away.value.mid_send


async def test_added_but_not_said_to_be_safe_is_not_delivered() -> None:
    short = await sent(ID, ID, ID, b":0", durability="wait:1")
    assert [one.delivered for one in short] == [False] * 3
    silent = await sent(ID, ID, ID, SILENCE, durability="wait:1", timeout="300ms")
    assert ["no answer" in (one.error or "") for one in silent] == [True] * 3
    with pytest.raises(TransportUnavailable) as cut:
        await sent(ID, ID, ID, CUT, durability="wait:1")
    assert cut.value.mid_send


async def test_safe_is_delivered() -> None:
    assert await sent(ID, ID, ID, b":1", durability="wait:1") == [DELIVERED] * 3
    refused = await sent(ID, b"-OOM words", ID, b"*2\r\n:1\r\n:0", durability="waitaof")
    assert [one.delivered for one in refused] == [True, False, True]


async def test_a_value_that_is_announced_without_end_breaks_the_connection() -> None:
    with pytest.raises(TransportUnavailable, match="does not answer as Redis does"):
        await sent(b"$999999999999")
