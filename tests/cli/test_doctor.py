"""`pillarbox doctor`, the real program: what it prints, and how it ends."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cli.program import PROGRAM, RunResult, environment, forbid_imports, pillarbox
from tests.support.cli.shop import Shop
from tests.support.http_endpoint import Endpoint, free_port

CANARY = "c4nary-s3cret"
HERE = ("--store", "sqlite:///shop.db")


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    made = Endpoint()
    await made.start()
    yield made
    await made.stop()


async def doctor(shop: Shop, *arguments: str, **extra: str) -> RunResult:
    return await asyncio.to_thread(pillarbox, "doctor", *arguments, cwd=shop.folder, **extra)


async def test_all_is_well(shop: Shop, endpoint: Endpoint) -> None:
    ran = await doctor(shop, *HERE, "--to", f"hooks={endpoint.url}?allow_private=true")

    assert ran.code == 0
    assert ran.out.splitlines() == [
        "store (sqlite:///shop.db)", "  fine", "",
        f"destination hooks (http://127.0.0.1:{endpoint.port}/…)", "  fine", "",
        "All is well.",
    ]  # fmt: skip
    output = ran.err.splitlines()
    assert output[0] == "Looking at the store and 1 destination"
    assert sorted(output[1:]) == ["  destination hooks: fine", "  store: fine"]


async def test_warnings_and_worse_have_codes_of_their_own(shop: Shop, endpoint: Endpoint) -> None:
    hooks = ("--to", f"hooks={endpoint.url}?allow_private=true")
    warned = await doctor(shop, "--store", "sqlite:///shop.db?synchronous=normal", *hooks)
    shop.publish(3, to="nowhere")
    critical = await doctor(shop, *HERE, *hooks, "-o", "json")

    assert (warned.code, critical.code) == (6, 7)
    assert "WARNING sqlite.commits-not-awaited" in warned.out
    found = json.loads(critical.out)
    assert (found["worst"], found["counts"]) == ("critical", {"critical": 1, "warning": 0, "info": 0})
    store, destination = found["examined"]
    assert (store["about"], store["place"], destination["about"]) == ("store", "sqlite:///shop.db", "destination hooks")
    (told,) = store["findings"]
    assert list(told) == ["code", "severity", "what", "why", "fix"]
    assert (told["code"], told["severity"]) == ("store.unserved-destination", "critical")

    (line,) = (await doctor(shop, *HERE, *hooks, "-o", "jsonl")).out.splitlines()
    assert json.loads(line) == {"about": "store", "place": "sqlite:///shop.db", **told}


async def test_it_takes_the_configuration_of_the_relay(shop: Shop, endpoint: Endpoint) -> None:
    (shop.folder / "pillarbox.toml").write_text(
        f'[store]\nurl = "sqlite:///shop.db"\n'
        f'[destinations.hooks]\nurl = "{endpoint.url}"\nallow_private = true\n'
        f'[destinations.other]\nurl = "https://other.example/{CANARY}"\n'
    )
    shop.publish(2, to="other")
    down = f"http://127.0.0.1:{await free_port()}/{CANARY}?allow_private=true"

    served = await doctor(shop, "--to", "hooks")
    everything = await doctor(shop, "-o", "json", PILLARBOX_DESTINATION_OTHER_URL=down)

    assert (served.code, "other" in served.out) == (0, False)
    assert everything.code == 7
    assert CANARY not in everything.out + everything.err
    store, _, other = json.loads(everything.out)["examined"]
    assert (store["findings"], other["findings"][0]["code"]) == ([], "destination.unreachable")


async def test_a_store_that_is_not_there_is_a_finding_too(shop: Shop) -> None:
    url = f"postgresql://app:{CANARY}@127.0.0.1:{await free_port()}/shop"
    ran = await doctor(shop, "--store", url, "--to", "memory:")

    assert ran.code == 7
    assert "CRITICAL store.unreachable" in ran.out
    assert CANARY not in ran.out + ran.err


async def test_a_driver_that_is_missing_is_a_finding_and_says_what_to_install(shop: Shop) -> None:
    (shop.folder / "modules").mkdir()
    path = forbid_imports(shop.folder / "modules", "aiohttp")
    ran = await doctor(shop, *HERE, "--to", "hooks=https://a.example", "--to", "list=memory:", PYTHONPATH=path)

    assert ran.code == 7
    assert "CRITICAL destination.driver-missing" in ran.out
    assert 'pip install "pillarbox[http]"' in ran.out
    assert "WARNING memory.forgets" in ran.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--to", "memory:"], "No store is configured"),
        ([*HERE], "No destination is configured"),
        ([*HERE, "--to", "memory:", "--lease", "1ms"], "lease"),
        ([*HERE, "--to", "a=memory:", "--to", "nowhere"], "There is no destination nowhere"),
    ],
)
async def test_a_configuration_that_says_too_little_is_wrong_usage(
    shop: Shop, arguments: list[str], words: str
) -> None:
    ran = await doctor(shop, *arguments)

    assert (ran.code, ran.out) == (2, "")
    assert words in ran.sentence


@pytest.mark.parametrize("time", ["soon", "0", "forever"])
async def test_a_time_that_is_none(shop: Shop, time: str) -> None:
    ran = await doctor(shop, *HERE, "--to", "memory:", "--timeout", time)

    assert (ran.code, ran.out) == (2, "")
    assert "--timeout" in ran.err


# --- what hangs ----------------------------------------------------------------------------------

STUCK = """
import asyncio, time
from pillarbox.brokers.memory import MemoryTransport

class Stuck(MemoryTransport):
    async def open(self):
        await asyncio.to_thread(time.sleep, 3600)

def stuck(url):
    return Stuck()
"""


def installed(folder: Path) -> str:
    """A PYTHONPATH with a package of somebody else's that brings a transport which blocks a thread for an hour."""
    info = folder / "stuck-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stuck\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pillarbox.transports]\nstuck = stuck:stuck\n")
    (folder / "stuck.py").write_text(STUCK)
    return str(folder)


async def test_a_thread_that_never_returns_does_not_hold_it_up(shop: Shop) -> None:
    path = installed(shop.folder / "modules")
    ran = await doctor(shop, *HERE, "--to", "a=stuck:", "--to", "b=memory:", "--timeout", "300ms", PYTHONPATH=path)

    assert ran.code == 7
    assert "CRITICAL destination.no-answer" in ran.out
    assert "WARNING memory.forgets" in ran.out
    assert ran.out.endswith("1 critical, 1 warning.\n")


async def test_a_hung_endpoint_does_not_hold_it_up_and_ctrl_c_ends_it(shop: Shop) -> None:
    callers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: callers.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    hooks = ("--to", f"hooks=http://127.0.0.1:{port}/?allow_private=true")
    ran = await doctor(shop, *HERE, *hooks, "--timeout", "300ms")
    process = await asyncio.create_subprocess_exec(
        PROGRAM, "doctor", *HERE, *hooks, cwd=shop.folder, env=environment({}), stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    while b"store: fine" not in await process.stderr.readline():
        pass
    process.send_signal(2)
    output = (await process.stderr.read()).decode()
    for caller in callers:
        caller.close()
    server.close()
    await server.wait_closed()

    assert (ran.code, "CRITICAL destination.no-answer" in ran.out) == (7, True)
    assert (await process.wait(), output) == (130, "\nInterrupted.\n")
