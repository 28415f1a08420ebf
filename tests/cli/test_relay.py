"""`pillarbox relay`, the real program: delivers, stops as promised, and says what is wrong."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from msgspec.structs import replace

from pillarbox.cli.relay import OutageTracker, _count_waiting, describe_open
from pillarbox.contracts.store import Count, Phase, PhaseCount, Selection
from pillarbox.contracts.writer import Insert
from pillarbox.message import Names, State, Waits
from pillarbox.stores.memory import MemoryStore
from pillarbox.testing.samples import sample
from tests.support.cli.program import RunResult, forbid_imports, pillarbox
from tests.support.cli.relay_process import start_relay
from tests.support.cli.shop import Shop
from tests.support.http_endpoint import Endpoint, free_port

CANARY = "c4nary-s3cret"


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    made = Endpoint()
    await made.start()
    yield made
    made.moves.set()
    await made.stop()


def hooks(endpoint: Endpoint) -> str:
    return f"hooks={endpoint.url}?allow_private=true"


def numbers(endpoint: Endpoint) -> list[int]:
    return [json.loads(arrival.body)["n"] for arrival in endpoint.taken]


def assert_left_clean(shop: Shop) -> None:
    """Nobody is in the registry, nothing is in anybody's hands."""
    assert shop.number("pillarbox_relay") == 0
    assert shop.number("pillarbox_claim") == 0
    assert shop.number("pillarbox_lane where relay_id is not null") == 0


async def relay_once(shop: Shop, *arguments: str, **extra: str) -> tuple[int, list[str]]:
    async with start_relay(shop, "--once", *arguments, **extra) as relay:
        return await relay.wait_until_ended(), relay.lines


# --- delivering and stopping -------------------------------------------------------------------------


async def test_it_delivers_until_it_is_told_to_stop(shop: Shop, endpoint: Endpoint) -> None:
    shop.publish(20)
    async with start_relay(shop, "--to", hooks(endpoint)) as relay:
        first = await relay.wait_for_line("delivers from")
        while shop.number("pillarbox_outbox"):  # noqa: ASYNC110 - another process's doing
            await asyncio.sleep(0.02)
        relay.signal(signal.SIGTERM)
        code = await relay.wait_until_ended()

    assert code == 0
    assert f"delivers from sqlite:///shop.db to hooks (http://127.0.0.1:{endpoint.port}/…)" in first
    assert "SIGTERM: finishing" in "".join(relay.lines)
    assert sorted(numbers(endpoint)) == list(range(20))
    assert shop.number("pillarbox_history where status = 'delivered'") == 20
    assert_left_clean(shop)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_lets_what_is_under_way_finish(
    shop: Shop, endpoint: Endpoint, number: signal.Signals
) -> None:
    shop.publish(12)
    endpoint.moves.clear()
    async with start_relay(shop, "--to", hooks(endpoint)) as relay:
        await relay.wait_for_line("took")
        await endpoint.came.wait()
        relay.signal(number)
        await relay.wait_for_line("finishing")
        under_way = len(endpoint.arrivals)
        endpoint.moves.set()
        code = await relay.wait_until_ended()

    assert code == 0
    assert under_way <= len(endpoint.taken) < 12
    assert shop.number("pillarbox_history where status = 'delivered'") == len(endpoint.taken)
    assert shop.number("pillarbox_outbox") == 12 - len(endpoint.taken)
    assert shop.number("pillarbox_outbox where attempts > 0 or waits is not null") == 0
    assert_left_clean(shop)

    assert (await relay_once(shop, "--to", hooks(endpoint)))[0] == 0
    assert sorted(numbers(endpoint)) == list(range(12))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
async def test_the_second_signal_ends_it_at_once_and_loses_nothing(
    shop: Shop, endpoint: Endpoint, number: signal.Signals, code: int
) -> None:
    shop.publish(8)
    endpoint.moves.clear()
    async with start_relay(shop, "--to", hooks(endpoint), "--lease", "1s") as relay:
        await endpoint.came.wait()
        relay.signal(number)
        await relay.wait_for_line("finishing")
        relay.signal(number)
        assert await relay.wait_until_ended() == code

    assert shop.number("pillarbox_outbox") == 8
    assert shop.number("pillarbox_claim") > 0
    endpoint.moves.set()
    assert (await relay_once(shop, "--to", hooks(endpoint), "--lease", "1s"))[0] == 0
    assert set(numbers(endpoint)) == set(range(8))
    assert shop.number("pillarbox_history where status = 'delivered'") == 8
    assert_left_clean(shop)


async def test_the_second_signal_works_while_something_blocks_the_loop(shop: Shop) -> None:
    (shop.folder / "blocking.py").write_text(
        "import sys, time\n"
        "from pillarbox.brokers.handlers import Handlers\n"
        "handlers = Handlers()\n"
        "@handlers.on('*')\n"
        "async def block(event):\n"
        "    print('blocked', file=sys.stderr, flush=True)\n"
        "    time.sleep(600)\n"
    )
    shop.publish(1)
    async with start_relay(shop, "--to", "hooks=handlers:blocking:handlers", PYTHONPATH=str(shop.folder)) as relay:
        await relay.wait_for_line("blocked")
        relay.signal(signal.SIGINT)
        async with asyncio.timeout(60):
            # Again and again: a signal right behind another may be given to a thread that does not wake the main one.
            while relay.process.returncode is None:
                relay.signal(signal.SIGTERM)
                await asyncio.sleep(0.2)
        assert relay.process.returncode == 143


# --- --once ------------------------------------------------------------------------------------------


async def test_once_delivers_what_is_there_and_ends(shop: Shop, endpoint: Endpoint) -> None:
    (shop.folder / "pillarbox.toml").write_text(f'[destinations.hooks]\nurl = "{endpoint.url}"\n')
    shop.publish(10)
    without_uvloop = forbid_imports(shop.folder, "uvloop")

    code, _ = await relay_once(shop, PILLARBOX_DESTINATION_HOOKS_ALLOW_PRIVATE="true", PYTHONPATH=without_uvloop)

    assert code == 0
    assert sorted(numbers(endpoint)) == list(range(10))
    assert shop.number("pillarbox_outbox") == 0
    assert_left_clean(shop)
    assert (await relay_once(shop, PILLARBOX_DESTINATION_HOOKS_ALLOW_PRIVATE="true"))[0] == 0


async def test_once_ends_with_one_when_messages_wait_for_what_is_down(shop: Shop) -> None:
    down = f"hooks=http://127.0.0.1:{await free_port()}?allow_private=true"
    assert (await relay_once(shop, "--to", down))[0] == 0
    shop.publish(3)

    code, output = await relay_once(shop, "--to", down)

    assert code == 1
    assert "3 messages wait for what is down or paused: hooks" in "".join(output)
    assert shop.number("pillarbox_outbox where attempts = 0 and waits is null") == 3
    assert_left_clean(shop)


async def test_once_ends_with_what_is_still_open_and_why(shop: Shop, endpoint: Endpoint) -> None:
    shop.publish(3)
    shop.publish(2, to="elsewhere")
    with shop.connect() as connection:
        later = "update pillarbox_outbox set waits = 'deferred', available_at = 4102444800000000 where id = 1"
        connection.execute(later)

    code, output = await relay_once(shop, "--to", hooks(endpoint))

    text = "".join(output)
    assert code == 0
    assert "not delivered to hooks: 1 deferred until a later time" in text
    assert "not delivered to elsewhere: 2 because this relay does not serve it" in text


async def test_once_tells_retries_skipped_and_what_waits_behind_them_apart(shop: Shop, endpoint: Endpoint) -> None:
    shop.publish(3, keys=1)
    with shop.connect() as connection:
        connection.execute("update pillarbox_outbox set waits = 'retry', available_at = 4102444800000000 where id = 1")
        connection.execute("update pillarbox_outbox set destination = '_skipped' where id = 3")

    _, output = await relay_once(shop, "--to", hooks(endpoint))

    text = "".join(output)
    assert "not delivered to hooks: 1 to be tried again; 1 behind another of their key" in text
    assert "1 skipped, because no route matches: see `pillarbox messages list --state skipped`" in text
    assert "because no route takes it" in text
    assert "to _skipped" not in text


def test_what_is_open_has_its_reason() -> None:
    def count(destination: str, state: State, number: int, *, due: bool = False) -> Count:
        return Count(destination=destination, topic=None, state=state, due=due, count=number, oldest_at=None)

    counts = [
        count("a", State.PENDING, 2, due=True),
        count("a", State.PENDING, 3),
        count("a", State.FAILED, 4),
        count("b", State.PENDING, 5, due=True),
        count("b", State.DISCARDED, 6),
        count("down", State.PENDING, 7, due=True),
        count("_skipped", State.SKIPPED, 8),
        count("done", State.DISCARDED, 9),
    ]
    counts += [count("down", State.FAILED, 1), count("a", State.SENDING, 1, due=True)]
    phases = [
        PhaseCount(destination="a", phase=Phase.RETRY, count=1, more=False),
        PhaseCount(destination="a", phase=Phase.PARKED, count=1, more=False),
        PhaseCount(destination="down", phase=Phase.RETRY, count=7, more=False),
    ]
    assert describe_open(counts, phases, served={"a", "done", "down"}, known={"down"}) == [
        "a: 1 to be tried again; 1 behind another of their key; 1 with another relay; 3 deferred until a later time; "
        "4 failed: see `pillarbox failures`",
        "b: 5 because this relay does not serve it",
        "down: 1 failed: see `pillarbox failures`",
    ]


async def test_what_waits_for_a_blocked_address_of_a_destination_is_counted_too() -> None:
    """The others of the destination got through. Those that wait were tried, and are due at a later time."""
    outages, store = OutageTracker(), MemoryStore()
    with store.transaction() as tx:
        tx.insert(Insert(names=Names(), messages=[sample(destination="hooks", key=None) for _ in range(3)]))
    first, second, _ = await store.find(Selection(), limit=3)
    for one in (first, second):
        store.data.put(replace(one, waits=Waits.RETRY, attempts=0, last_error="its address takes nothing"))
    outages.on_address_blocked("hooks", "/a", reason="missing", is_missing=True)
    assert await _count_waiting(store, outages, {"hooks"}) == 2
    outages.on_address_unblocked("hooks", "/a")
    assert await _count_waiting(store, outages, {"hooks"}) == 0


def test_outages_of_a_lost_lease_do_not_count_for_the_exit_code() -> None:
    """The relay starts again without them, and never reports their end."""
    outages = OutageTracker()
    outages.on_breaker_opened("hooks", reason="away", seconds=1.0)
    outages.on_paused("mail", reason="maintenance")
    outages.on_address_blocked("shop", "/a", reason="missing", is_missing=True)
    assert (outages.destinations, outages.partly) == ({"hooks", "mail"}, {"shop"})
    outages.on_lease_lost(reason="it ran out")
    assert (outages.destinations, outages.partly) == (set(), set())


async def test_once_ends_with_one_when_messages_wait_for_what_is_paused(shop: Shop, endpoint: Endpoint) -> None:
    shop.publish(3)
    with shop.connect() as connection:
        connection.execute("insert into pillarbox_destination values ('hooks', 'me', 0, 'maintenance')")

    code, output = await relay_once(shop, "--to", hooks(endpoint))

    assert (code, endpoint.arrivals) == (1, [])
    assert "maintenance" in "".join(output)
    assert shop.number("pillarbox_outbox") == 3


async def test_once_ends_when_the_store_cannot_be_written(shop: Shop, endpoint: Endpoint) -> None:
    shop.publish(3)
    with shop.connect() as connection:
        connection.execute(
            "create trigger read_only before insert on pillarbox_relay begin select raise(abort, 'not now'); end"
        )

    code, output = await relay_once(shop, "--to", hooks(endpoint), "--lease", "1s")

    assert (code, endpoint.arrivals) == (1, [])
    assert [line for line in output if line.startswith("Error:")]
    assert "Traceback" not in "".join(output)
    assert shop.number("pillarbox_outbox") == 3


# --- duties ---


async def test_once_without_delivery_runs_each_duty_and_says_what_it_does_not(shop: Shop, endpoint: Endpoint) -> None:
    shop.publish(3)
    assert (await relay_once(shop, "--to", hooks(endpoint)))[0] == 0
    shop.publish(2)

    code, output = await relay_once(
        shop, "--to", hooks(endpoint), "--duties", "clean", PILLARBOX_RELAY_RETENTION_DELIVERED="0"
    )

    assert (code, shop.number("pillarbox_history"), shop.number("pillarbox_outbox")) == (0, 0, 2)
    assert "delivers nothing" in "".join(output)


@pytest.mark.parametrize("duty", ["send", "retry", "retry,clean"])
async def test_half_of_a_delivery_is_refused(shop: Shop, endpoint: Endpoint, duty: str) -> None:
    shop.publish(1)
    code, output = await relay_once(shop, "--to", hooks(endpoint), "--duties", duty)
    assert (code, endpoint.arrivals) == (2, [])
    assert "send and retry go together" in "".join(output)


# --- log lines ---------------------------------------------------------------------------------------


async def test_json_log_lines_have_every_field(shop: Shop, endpoint: Endpoint) -> None:
    shop.publish(3, keys=3)
    endpoint.answers = [web.Response(status=204), web.Response(status=422, text="no\x07 thanks")]

    code, output = await relay_once(
        shop, "--to", hooks(endpoint), "--log-format", "json", "--deliveries-at", "info", "--window", "1"
    )

    lines = [json.loads(line) for line in output]
    rows = shop.rows("select message_id, correlation_id, type, topic, status from pillarbox_history")
    told = {line["message_id"]: line for line in lines if "message_id" in line}
    assert code == 0
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert lines[0]["destinations"] == {"hooks": f"http://127.0.0.1:{endpoint.port}/…"}
    for message_id, correlation_id, type_, topic, status in rows:
        line = told[message_id]
        assert (line["correlation_id"], line["type"], line["topic"]) == (correlation_id, type_, topic)
        assert (line["destination"], line["attempt"]) == ("hooks", 1)
        assert line["level"] == ("info" if status == "delivered" else "warning")
        assert ("error" in line) == (status == "failed")
    assert sorted(row[-1] for row in rows) == ["delivered", "delivered", "failed"]


async def test_the_level_decides_what_is_written(shop: Shop, endpoint: Endpoint) -> None:
    shop.publish(1)

    _, output = await relay_once(shop, "--to", hooks(endpoint), PILLARBOX_LOG_LEVEL="error")

    assert [line.split()[1] for line in output] == ["info", "info"]
    assert "delivers from" in output[0]
    assert output[1].endswith("stopped")


# --- bad input ---------------------------------------------------------------------------------------


def refused(*arguments: str, cwd: Path, **extra: str) -> RunResult:
    return pillarbox("relay", *arguments, cwd=cwd, **extra)


HERE = ("--store", "sqlite:///shop.db")
MEMORY = ("--to", "memory:")


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (MEMORY, 2, "No store is configured: give --store URL"),
        (HERE, 2, "No destination is configured: give --to NAME=URL"),
        (("--store", "oracle://127.0.0.1/shop", *MEMORY), 2, "No installed store is called 'oracle'"),
        (("--store", "sqlite:///none.db", *MEMORY), 2, "There is no SQLite file none.db"),
        ((*HERE, "--to", "pigeon://coop"), 2, "No installed transport is called 'pigeon'"),
        ((*HERE, "--to", "https://a.example?colour=red"), 2, "no option 'colour'"),
        ((*HERE, "--to", "http://127.0.0.1/x?allow_private=true&secret=env:NOT_SET"), 2, "NOT_SET, which is not set"),
        ((*HERE, "--to", "a=memory:", "--to", "a=memory:"), 2, "The destination a is named twice"),
        ((*HERE, "--to", "a=memory:", "--to", "b"), 2, "There is no destination b"),
        ((*HERE, "--to", "a="), 2, "has no URL"),
        ((*HERE, *MEMORY, "--lease", "soon"), 2, "--lease must be a duration"),
        ((*HERE, *MEMORY, "--window", "0"), 2, "window of destination default must be at least 1"),
        ((*HERE, *MEMORY, "--prefix", "a b"), 2, "table prefix 'a b'"),
        ((*HERE, *MEMORY, "--config", "none.toml"), 2, "none.toml cannot be read"),
        ((*HERE, *MEMORY, "--prefix", "other_"), 4, "run `pillarbox schema install`"),
    ],
)
async def test_bad_input_is_one_sentence_and_a_code(
    shop: Shop, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    ran = await asyncio.to_thread(refused, *arguments, cwd=shop.folder)

    assert (ran.code, ran.out) == (code, "")
    assert expected in ran.sentence


async def test_a_store_that_cannot_be_reached_at_the_start_ends_with_three(tmp_path: Path) -> None:
    url = f"postgresql://app:{CANARY}@127.0.0.1:{await free_port()}/shop"
    for once in ((), ("--once",)):
        ran = await asyncio.to_thread(refused, "--store", url, *MEMORY, *once, cwd=tmp_path)
        assert (ran.code, CANARY in ran.err) == (3, False)
        assert "cannot be reached" in ran.sentence


async def test_a_missing_extra_says_what_to_install(shop: Shop) -> None:
    path = forbid_imports(shop.folder, "aiohttp")

    ran = await asyncio.to_thread(refused, *HERE, "--to", "https://a.example", cwd=shop.folder, PYTHONPATH=path)

    assert ran.code == 2
    assert 'pip install "pillarbox[http]"' in ran.sentence


@pytest.mark.parametrize("form", ["text", "json"])
async def test_no_log_line_has_a_secret(shop: Shop, endpoint: Endpoint, form: str) -> None:
    options = f"allow_private=true&secret=${{SECRET}}&headers.authorization=env:TOKEN&query.t={CANARY}"
    url = f"hooks={endpoint.url}/{CANARY}?{options}"
    endpoint.answers = [web.Response(status=500, text=f"echo {CANARY} Bearer {CANARY}") for _ in range(3)]
    shop.publish(3)

    code, output = await relay_once(
        shop,
        "--to",
        url,
        "--log-format",
        form,
        "--log-level",
        "debug",
        SECRET=f"{CANARY}-0123456789",
        TOKEN=f"Bearer {CANARY}",
    )

    assert code == 1
    assert "500" in "".join(output)
    assert CANARY not in "".join(output)
    assert CANARY not in str(shop.rows("select last_error from pillarbox_outbox"))
