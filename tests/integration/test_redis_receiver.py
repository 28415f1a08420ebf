"""The Redis receiver: its group, entries in hand, what others left, and what it says when there is no way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, closing
from typing import Any

import pytest
import redis.asyncio as plain

from pillarbox.brokers.factory import receiver_from_url
from pillarbox.brokers.redis import RedisReceiver
from pillarbox.brokers.redis import receiver as receiver_module
from pillarbox.brokers.redis.settings import GIVEN_BACK
from pillarbox.errors import ConfigError, TransportUnavailable
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.receiver_contract import assert_nothing_more, take
from tests.support.redis_server import PrivateRedis, private_redis

PATIENCE = 40.0
STREAM, GROUP = "orders", "billing"


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateRedis]:
    with closing(private_redis("--save", "")) as server:
        yield server


@pytest.fixture
async def client(server: PrivateRedis) -> AsyncIterator[Any]:
    async with aclosing(plain.Redis(port=server.port, protocol=2, decode_responses=True)) as client:
        await client.flushall()
        yield client


def receiver_at(url: str, /, **options: object) -> RedisReceiver:
    receiver = receiver_from_url(url, options=options)
    assert isinstance(receiver, RedisReceiver)
    return receiver


@asynccontextmanager
async def opened(url: str, **options: object) -> AsyncIterator[RedisReceiver]:
    usual = {"stream": STREAM, "group": GROUP, "declare": True, "claim_after": "10m"}
    receiver = receiver_at(url, **{**usual, **options})
    await receiver.open()
    try:
        yield receiver
    finally:
        await receiver.close()


async def refusal(url: str, **options: object) -> str:
    with pytest.raises(TransportUnavailable) as error:
        await receiver_at(url, **{"stream": STREAM, "group": GROUP, **options}).open()
    return str(error.value)


async def put(client: Any, *numbers: int) -> list[str]:
    return [await client.xadd(STREAM, {"data": str(number)}) for number in numbers]


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await true():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def pending(client: Any) -> dict[str, tuple[str, int]]:
    """Who has which entry in hand, and how often it was delivered."""
    found = await client.xpending_range(STREAM, GROUP, "-", "+", 100)
    return {one["message_id"]: (one["consumer"], one["times_delivered"]) for one in found}


async def consumers(client: Any) -> set[str]:
    return {one["name"] for one in await client.xinfo_consumers(STREAM, GROUP)}


def bodies(received: Any) -> list[bytes]:
    return [one.body for one in received]


# --- the group -------------------------------------------------------------------------------------------


async def test_what_is_not_there_is_named(server: PrivateRedis, client: Any) -> None:
    said = await refusal(server.url)
    assert f"has no group '{GROUP}' of the stream '{STREAM}': create it, or set declare=true" in said


async def test_a_declared_group_reads_from_the_start(server: PrivateRedis, client: Any) -> None:
    await put(client, 1)
    async with opened(server.url) as one:
        assert bodies(await take(one, 1)) == [b"1"]


async def test_a_group_that_is_there_stays_as_it_is(server: PrivateRedis, client: Any) -> None:
    await put(client, 1)
    await client.xgroup_create(STREAM, GROUP, id="$")
    async with opened(server.url) as one:
        await put(client, 2)
        assert bodies(await take(one, 1)) == [b"2"]


@pytest.mark.parametrize("command", [["FLUSHALL"], ["DEL", STREAM], ["XGROUP", "DESTROY", STREAM, GROUP]])
async def test_a_group_that_is_removed_is_made_again(server: PrivateRedis, client: Any, command: list[str]) -> None:
    async with opened(server.url) as one:
        await put(client, 1)
        (received,) = await take(one, 1)
        await one.acknowledge(received)
        waiting = asyncio.create_task(one.receive(limit=1))
        await asyncio.sleep(0.1)  # so that it does wait
        await client.execute_command(*command)
        with pytest.raises(TransportUnavailable, match="set declare=true"):
            async with asyncio.timeout(PATIENCE):
                await waiting
        await put(client, 2)
        assert (await take(one, 2 if command[0] == "XGROUP" else 1))[-1].body == b"2"


async def test_one_that_is_not_ours_to_make_is_waited_for(server: PrivateRedis, client: Any) -> None:
    await client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    async with opened(server.url, declare=False) as one:
        await client.flushall()
        with pytest.raises(TransportUnavailable, match="has no group"):
            await one.ping()
        await client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        await put(client, 1)
        assert bodies(await take(one, 1)) == [b"1"]


# --- entries in hand -------------------------------------------------------------------------------------


async def test_what_is_in_hand_gives_signs_of_life(server: PrivateRedis, client: Any) -> None:
    """So that nobody takes it over, however long its handler takes; and none of them counts as a delivery."""
    async with opened(server.url, claim_after="3s") as one:
        (entry,) = await put(client, 1)
        await take(one, 1)
        assert await signs(client, entry) >= 2
        assert await pending(client) == {entry: (one.name, 1)}


async def signs(client: Any, entry: str) -> int:
    """Wait until the time since the last sign of life began anew twice."""
    seen, last = 0, 0
    async with asyncio.timeout(PATIENCE):
        while seen < 2:
            ((idle,),) = [
                [one["time_since_delivered"]] for one in await client.xpending_range(STREAM, GROUP, entry, entry, 1)
            ]
            seen, last = seen + (idle < last), idle
            await asyncio.sleep(0.02)
    return seen


async def test_what_another_took_over_is_left_to_it(server: PrivateRedis, client: Any) -> None:
    async with opened(server.url, claim_after="3s") as one:
        taken, kept = await put(client, 1, 2)
        await take(one, 2)
        await client.xclaim(STREAM, GROUP, "another", 0, [taken])
        await signs(client, kept)
        holders = {entry: holder for entry, (holder, _) in (await pending(client)).items()}
        assert holders == {taken: "another", kept: one.name}


async def test_what_is_in_hand_is_not_taken_over_from_ourselves(server: PrivateRedis, client: Any) -> None:
    async with opened(server.url) as one:
        slow, _ = await put(client, 1, 2)
        first, second = await take(one, 2)
        await client.execute_command("XCLAIM", STREAM, GROUP, one.name, 0, slow, "TIME", 0, "JUSTID")
        await one.give_back(second)  # it looks for abandoned ones then
        assert bodies(await take(one, 1)) == [b"2"]
        await assert_nothing_more(one)
        await one.acknowledge(first)
        assert slow not in await pending(client)


async def test_a_dead_one_that_comes_back_by_its_name_goes_on_at_once(server: PrivateRedis, client: Any) -> None:
    """In order, before what is new, and long before others would take over."""
    async with FaultProxy("127.0.0.1", server.port) as proxy:
        async with opened(f"redis://{proxy.host}:{proxy.port}", consumer="pod-1") as one:
            await put(client, 1, 2, 3)
            assert len(await take(one, 2, limit=2)) == 2
            await proxy.down()
        async with opened(server.url, consumer="pod-1") as again:
            came = await take(again, 3, limit=1)
    assert bodies(came) == [b"1", b"2", b"3"]
    assert [received.redelivered for received in came] == [True, True, False]


async def test_given_back_they_come_to_another_who_waits(
    server: PrivateRedis, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver_module, "_BLOCK", 0.5)
    async with opened(server.url) as one, opened(server.url) as other:
        await put(client, 1, 2, 3)
        taken = await take(one, 3)
        waiting = asyncio.create_task(take(other, 3))
        for received in reversed(taken):
            await one.give_back(received)
        again = await waiting
    assert sorted(bodies(again)) == [b"1", b"2", b"3"]
    assert all(received.redelivered for received in again)


async def test_closing_gives_back_at_once_in_order_and_leaves_the_group(server: PrivateRedis, client: Any) -> None:
    async with opened(server.url) as one:
        await put(client, 1, 2, 3)
        await take(one, 1, limit=1)
        await take(one, 1, limit=1)
        assert one.name in await consumers(client)
    assert await consumers(client) == {GIVEN_BACK}
    async with opened(server.url) as other:
        assert bodies(await take(other, 3)) == [b"1", b"2", b"3"]


async def test_closing_while_somebody_waits_loses_nothing(server: PrivateRedis, client: Any) -> None:
    """A read that waits at the server may bring something in the very moment."""
    for number in range(20):
        async with opened(server.url) as one:
            waiting = asyncio.create_task(one.receive(limit=1))
            putting = asyncio.create_task(put(client, number))
            await asyncio.sleep(0.001 * (number % 5))
        await asyncio.gather(waiting, return_exceptions=True)
        await putting
    async with opened(server.url) as other:
        came = await take(other, 20)
    assert sorted(int(received.body) for received in came) == list(range(20))


async def test_a_consumer_with_something_in_hand_is_not_removed(server: PrivateRedis, client: Any) -> None:
    """The server would forget what it has, and deliver it to nobody."""
    await client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    (entry,) = await put(client, 1)
    await client.xreadgroup(GROUP, "one", {STREAM: ">"})
    await client.eval(receiver_module._REMOVE_CONSUMER, 1, STREAM, GROUP, "one")
    assert await pending(client) == {entry: ("one", 1)}
    await client.xack(STREAM, GROUP, entry)
    await client.eval(receiver_module._REMOVE_CONSUMER, 1, STREAM, GROUP, "one")
    assert await consumers(client) == set()


async def test_one_that_may_not_give_back_keeps_its_name(server: PrivateRedis, client: Any) -> None:
    await client.execute_command("ACL", "SETUSER", "poor", "on", ">secret", "~*", "+@all", "-xclaim")
    async with opened(f"redis://poor:secret@127.0.0.1:{server.port}") as one:
        (entry,) = await put(client, 1)
        await take(one, 1)
    assert await pending(client) == {entry: (one.name, 1)}


async def test_closing_ends_a_wait_at_the_server_without_its_help(
    server: PrivateRedis, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the login may not end it."""
    monkeypatch.setattr(receiver_module, "_BLOCK", 0.5)
    await client.execute_command("ACL", "SETUSER", "poor", "on", ">secret", "~*", "+@all", "-client|unblock")
    async with opened(f"redis://poor:secret@127.0.0.1:{server.port}") as one:
        waiting = asyncio.create_task(one.receive(limit=1))
        await asyncio.sleep(0.1)
    with pytest.raises(TransportUnavailable):
        await waiting
    assert await consumers(client) == set()


# --- what others left ------------------------------------------------------------------------------------


async def test_what_a_stranger_left_is_taken_over(server: PrivateRedis, client: Any) -> None:
    """Any consumer of the group, also one that is not ours; page by page."""
    await client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    await put(client, *range(50))
    await client.xreadgroup(GROUP, "stranger", {STREAM: ">"})
    async with opened(server.url, claim_after="1s") as one:
        came = await take(one, 50, limit=3)
        for received in came:
            await one.acknowledge(received)
    assert [int(received.body) for received in came] == list(range(50))
    assert all(received.redelivered for received in came)
    assert await pending(client) == {}


async def test_what_was_trimmed_unhandled_is_said_and_let_go(
    server: PrivateRedis, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    first, _ = await put(client, 1, 2)
    await client.xreadgroup(GROUP, "stranger", {STREAM: ">"})
    await client.xdel(STREAM, first)
    with caplog.at_level(logging.WARNING):
        async with opened(server.url, claim_after="1s") as one:
            came = await take(one, 1)
            assert bodies(came) == [b"2"]
            assert first not in await pending(client)
    assert "Lost: 1 entries of 'orders' were trimmed before they were handled" in caplog.text


async def test_our_own_that_was_trimmed_is_said_and_let_go(
    server: PrivateRedis, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    first, _ = await put(client, 1, 2)
    await client.xreadgroup(GROUP, "pod-1", {STREAM: ">"})
    await client.xdel(STREAM, first)
    with caplog.at_level(logging.WARNING):
        async with opened(server.url, consumer="pod-1") as one:
            assert bodies(await take(one, 1, limit=1)) == [b"2"]
            assert first not in await pending(client)
    assert "Lost: 1 entries" in caplog.text


# --- what comes ------------------------------------------------------------------------------------------


async def test_an_entry_without_data_is_its_fields(server: PrivateRedis, client: Any) -> None:
    async with opened(server.url) as one:
        entry = await client.xadd(STREAM, {"order": "7", "tenant": "shop-1"})
        (received,) = await take(one, 1)
    assert received.body == b'{"order":"7","tenant":"shop-1"}'
    assert received.headers == {"content-type": "application/json", "order": "7", "tenant": "shop-1"}
    plain_one = received.fallback
    assert (plain_one.source, plain_one.message_id, plain_one.topic) == (
        f"redis:{STREAM}",
        f"{STREAM}/{entry}",
        STREAM,
    )


async def test_any_bytes_come(server: PrivateRedis, client: Any) -> None:
    async with opened(server.url) as one:
        await client.xadd(STREAM, {b"\xff": b"\xfe", b"data": b"\xff\x00"})
        (received,) = await take(one, 1)
    assert received.body == b"\xff\x00"
    assert received.headers == {"\ufffd": b"\xfe"}


# --- no way there ----------------------------------------------------------------------------------------


async def test_a_server_that_falls_silent_is_noticed(server: PrivateRedis, client: Any) -> None:
    async with (
        FaultProxy("127.0.0.1", server.port) as proxy,
        opened(f"redis://{proxy.host}:{proxy.port}", timeout="500ms") as one,
    ):
        proxy.hang()
        with pytest.raises(TransportUnavailable):
            async with asyncio.timeout(PATIENCE):
                await one.receive(limit=1)
        assert "cannot be reached" in await refusal(f"redis://{proxy.host}:{proxy.port}", timeout="300ms")
        proxy.heal()
        await put(client, 1)
        assert bodies(await take(one, 1)) == [b"1"]


async def test_a_key_that_is_no_stream_is_said(server: PrivateRedis, client: Any) -> None:
    await client.set(STREAM, "text")
    assert "holds something else than a stream" in await refusal(server.url, declare=True)


async def test_what_a_login_may_not_do_is_said_without_it(server: PrivateRedis, client: Any) -> None:
    await client.execute_command("ACL", "SETUSER", "poor", "on", ">canary-1234", "~*", "+@all", "-xreadgroup")
    place = f"127.0.0.1:{server.port}"
    said = await refusal(f"redis://poor:canary-wrong@{place}")
    assert "refuses the login" in said
    assert "canary" not in said
    async with opened(f"redis://poor:canary-1234@{place}") as one:
        with pytest.raises(TransportUnavailable, match="this user may not read it") as error:
            await one.receive(limit=1)
    assert "canary" not in str(error.value)


# --- options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"group": "g"}, "needs a stream"),
        ({"stream": "s"}, "needs a group"),
        ({"stream": "", "group": "g"}, "option stream .* is no name"),
        ({"stream": "s", "group": "a\nb"}, "option group .* is no name"),
        ({"stream": "s", "group": "g", "consumer": "x" * 201}, "option consumer .* is no name"),
        ({"stream": "s", "group": "g", "consumer": GIVEN_BACK}, "that name is taken"),
        ({"stream": "s", "group": "g", "claim_after": "0s"}, "claim_after"),
        ({"stream": "s", "group": "g", "verify": False}, "insecure=true"),
        ({"stream": "s", "group": "g", "colour": "red"}, "no option 'colour'"),
        ({"stream": "s", "group": "g", "url": "redis://x"}, "twice"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        receiver_at("redis://redis.example", **options)


def test_nothing_shows_a_secret() -> None:
    one = receiver_at("redis://shop:canary-1234@redis.example", stream="s", group="g")
    assert "canary" not in f"{one!r} {one.settings!r} {one.settings}"


def test_each_receiver_has_a_name_of_its_own() -> None:
    names = {receiver_at("redis://redis.example", stream="s", group="g").name for _ in range(3)}
    assert len(names) == 3
    assert receiver_at("redis://redis.example", stream="s", group="g", consumer="pod-1").name == "pod-1"
