"""One bad message alone on a quiet destination, with real relay processes: the next good one of another key goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from aiohttp import web

from tests.support.cli.relay_process import start_relay
from tests.support.cli.shop import Shop
from tests.support.http_endpoint import Arrival, Endpoint, free_port

TRIES = 5
"""After so many the next one of the bad message comes in 8 seconds at the earliest."""
PATIENCE = 5.0


@pytest.mark.parametrize("status", [500, 429, 403])
async def test_a_webhook_that_fails_one_message_takes_the_next_one_at_once(shop: Shop, status: int) -> None:
    endpoint = Endpoint()
    tries = 0

    def judge(arrival: Arrival) -> web.Response | None:
        nonlocal tries
        is_bad = arrival.method == "POST" and json.loads(arrival.body)["n"] == 0
        tries += is_bad
        return web.Response(status=status) if is_bad else None

    endpoint.judge = judge
    await endpoint.start()
    try:
        shop.publish(1)
        async with start_relay(shop, "--to", f"hooks={endpoint.url}?allow_private=true"):
            await _until(lambda: tries >= TRIES, within=60)
            shop.publish(2)  # the second is of another key
            await _until(lambda: any(json.loads(one.body)["n"] == 1 for one in endpoint.taken), within=PATIENCE)
    finally:
        await endpoint.stop()


async def test_a_webhook_that_is_down_gets_no_flood(shop: Shop) -> None:
    endpoint = Endpoint()
    endpoint.judge = lambda arrival: web.Response(status=503) if arrival.method == "POST" else None
    await endpoint.start()
    try:
        shop.publish(1)
        async with start_relay(shop, "--to", f"hooks={endpoint.url}?allow_private=true") as relay:
            await _until(lambda: len(endpoint.arrivals) >= 1, within=60)
            for _ in range(20):
                shop.publish(5, keys=5)
                await asyncio.sleep(0.1)
            await relay.wait_for_line("acknowledges nothing")
            shop.publish(100, keys=50)
            sent = [one for one in endpoint.arrivals if one.method == "POST"]
            assert len(sent) <= 12, "three different ones and tries of these, then a probe after each rest"
    finally:
        await endpoint.stop()


_SHOP = """
from pillarbox.brokers.handlers import Handlers

handlers = Handlers()


@handlers.on("*")
def bill(event):
    if event["n"] == 0:
        raise KeyError("total")
    print("billed", event["n"], flush=True)
"""
_CONFIG = """
[destinations.hooks]
url = "handlers:billing:handlers"
retry = { schedule = ["100ms"], attempts = 4 }
"""


async def test_a_bug_in_a_handler_fails_its_message_by_its_attempts_and_the_next_one_goes(shop: Shop) -> None:
    (shop.folder / "billing.py").write_text(_SHOP)
    (shop.folder / "pillarbox.toml").write_text(_CONFIG)
    shop.publish(1)
    port = await free_port()
    async with start_relay(shop, "--http", f"127.0.0.1:{port}") as relay:
        await relay.wait_for_line("failed ")
        await _until(lambda: shop.number("pillarbox_history where status = 'failed'") == 1, within=60)
        ((attempts, error),) = shop.rows("select attempts, last_error from pillarbox_history where status = 'failed'")
        assert (attempts, "KeyError" in error) == (4, True)
        shop.publish(2)
        await _until(lambda: shop.number("pillarbox_history where status = 'delivered'") == 1, within=PATIENCE)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
        assert b" 200 " in await reader.readline()
        writer.close()
    assert not any("acknowledges nothing" in line or "is down" in line for line in relay.lines)
    assert "KeyError" in shop.run("failures").out


async def _until(holds: Callable[[], bool], *, within: float) -> None:
    async with asyncio.timeout(within):
        while not holds():  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(0.05)
