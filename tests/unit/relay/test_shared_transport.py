"""One transport of many stores: it connects with its first user and disconnects with its last one."""

from __future__ import annotations

import asyncio

import pytest

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.errors import TransportUnavailable
from pillarbox.relay.shared_transport import SharedTransport


class _Counting(MemoryTransport):
    """Counts what it is asked, and waits in the middle of connecting and of a ping."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.may_go_on = asyncio.Event()

    async def open(self) -> None:
        self.calls.append("open")
        await self.may_go_on.wait()
        await super().open()

    async def close(self) -> None:
        self.calls.append("close")
        await super().close()

    async def ping(self) -> None:
        self.calls.append("ping")
        await self.may_go_on.wait()
        await super().ping()


def build() -> tuple[_Counting, SharedTransport]:
    transport = _Counting()
    return transport, SharedTransport(lambda: transport)


async def test_it_stays_open_until_its_last_user_has_closed_it() -> None:
    transport, shared = build()
    transport.may_go_on.set()
    first, second = shared.share(), shared.share()
    await asyncio.gather(first.open(), second.open())
    assert transport.calls == ["open"]
    await first.close()
    await first.close()
    assert transport.calls == ["open"]
    await second.close()
    assert transport.calls == ["open", "close"]
    await second.open()
    assert transport.calls == ["open", "close", "open"]


async def test_one_that_waits_no_longer_leaves_the_attempt_to_the_others() -> None:
    transport, shared = build()
    first, second = shared.share(), shared.share()
    opening = [asyncio.create_task(one.open()) for one in (first, second)]
    await asyncio.sleep(0)
    opening[0].cancel()
    await asyncio.sleep(0)
    transport.may_go_on.set()
    await opening[1]
    await first.close()
    assert transport.calls == ["open"], "the first one is no user"
    await second.close()
    assert transport.calls == ["open", "close"]


async def test_what_is_opened_for_nobody_is_closed() -> None:
    transport, shared = build()
    opening = asyncio.create_task(shared.share().open())
    await asyncio.sleep(0)
    opening.cancel()
    transport.may_go_on.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert transport.calls == ["open", "close"]


async def test_an_attempt_that_fails_fails_for_all_and_the_next_is_another() -> None:
    transport, shared = build()
    transport.may_go_on.set()
    transport.go_down()
    users = [shared.share(), shared.share()]
    for _ in range(2):
        ends = await asyncio.gather(*(one.open() for one in users), return_exceptions=True)
        assert [type(end) for end in ends] == [TransportUnavailable, TransportUnavailable]
    assert transport.calls == ["open", "open"]
    transport.come_back()
    await users[0].open()
    assert transport.calls == ["open", "open", "open"]


async def test_those_that_ping_at_the_same_time_wait_for_one_ping() -> None:
    transport, shared = build()
    transport.may_go_on.set()
    users = [shared.share(), shared.share()]
    await asyncio.gather(*(one.open() for one in users))
    await asyncio.gather(*(one.ping() for one in users))
    assert transport.calls == ["open", "ping"]
    transport.go_down()
    with pytest.raises(TransportUnavailable):
        await users[0].ping()
    assert transport.calls == ["open", "ping", "ping"]
