"""Details of pages that a small mistake would change without an error: whose notes, which tries, which role."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote_plus
from uuid import UUID

import pytest
from msgspec.structs import replace

from pillarbox.contracts.store import Action, JournalEntry, Pause
from pillarbox.contracts.writer import Fail
from pillarbox.dashboard import Role
from pillarbox.dashboard.activity import to_csv
from pillarbox.dashboard.charts import list_bands
from pillarbox.dashboard.destinations import find_breaker
from pillarbox.dashboard.jobs import Job, Jobs
from pillarbox.dashboard.shared_reads import SharedReads
from pillarbox.errors import StoreUnavailable
from pillarbox.message import Names
from pillarbox.testing.samples import sample
from tests.dashboard.test_conditions import destination
from tests.support.dashboard.client import Client
from tests.support.dashboard.seed import Relaying, fill, to_incoming
from tests.support.dashboard.stores import OpenStore

Build = Callable[..., Client]
NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)


def entry(action: Action, minutes: int, **more: Any) -> JournalEntry:
    values = {"message_id": None, "destination": "billing", "by": "relay"} | more
    return JournalEntry(action=action, at=NOW + minutes * timedelta(minutes=1), **values)


# --- destinations ---


def test_a_breaker_is_open_since_the_first_outage_after_the_last_recovery() -> None:
    journal = [
        entry(Action.OUTAGE, 1, error="first"), entry(Action.RECOVERED, 2), entry(Action.PAUSED, 3),
        entry(Action.OUTAGE, 4, error="second", by="a"), entry(Action.OUTAGE, 5, error="third", by="b"),
    ]  # fmt: skip

    partly = find_breaker(destination(relays=2, reachable=1), journal)
    assert (partly.state, partly.since, partly.error, partly.reported_by) == (
        "partly open", NOW + timedelta(minutes=4), "second", "a",
    )  # fmt: skip
    assert find_breaker(destination(relays=2, reachable=0), journal).state == "open"
    assert find_breaker(destination(relays=2, reachable=2), journal).since is None
    assert find_breaker(destination(relays=0, reachable=0), journal).state == "unknown"
    assert find_breaker(destination(relays=1, reachable=0), journal[:3]).since is None


def test_a_pause_in_force_has_a_band_without_its_line_in_the_journal() -> None:
    pause = Pause(destination="billing", by="bob", at=NOW, reason="moving")

    (band,) = list_bands([], since=NOW - timedelta(hours=1), pauses=[pause])
    assert (band.destination, band.kind, band.start, band.end, band.reason) == ("billing", "pause", NOW, None, "moving")


async def test_a_pause_shows_its_reason_and_refuses_one_that_is_too_long(
    memory: OpenStore, build_client: Build
) -> None:
    await fill(memory.store, memory.writer)
    client = build_client(memory)

    refused = await client.post("/orders/destinations/billing/pause", {"reason": "x" * 501})
    assert (refused.status_code, "longer than 500 characters" in refused.text) == (400, True)
    assert "Paused by" not in (await client.get("/orders/destinations/billing")).text
    await client.post("/orders/destinations/billing/pause", {"reason": "they move house"})
    assert re.search(r"Paused by ann</b>.*: they move house", (await client.get("/orders/destinations/billing")).text)


async def test_a_probe_of_a_destination_without_a_relay_says_so(memory: OpenStore, build_client: Build) -> None:
    await fill(memory.store, memory.writer)

    answer = await build_client(memory).post("/orders/destinations/unserved/probe", {})
    assert (answer.status_code, "No live relay serves unserved" in answer.text) == (400, True)


# --- messages ---


@pytest.mark.parametrize(
    ("traceparent", "link"),
    [
        (
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "https://t.example/4bf92f3577b34da6a3ce929d0e0e4736?",
        ),
        ("00-../evil?x-00f067aa0ba902b7-01", "https://t.example/..%2Fevil%3Fx?"),
        ("4bf92f3577b34da6a3ce929d0e0e4736", None),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-01", None),
        ("", None),
    ],
)
async def test_a_message_links_to_its_trace(
    traceparent: str, link: str | None, memory: OpenStore, build_client: Build
) -> None:
    await memory.writer.insert([sample(headers={"traceparent": traceparent} if traceparent else {})])

    answer = await build_client(memory, trace_url="https://t.example/{trace_id}?").get("/orders/messages/1")
    assert answer.status_code == 200
    assert re.findall(r'<dt>trace</dt><dd><a href="([^"]*)"', answer.text) == ([link] if link else [])
    assert "<dt>trace</dt>" not in (await build_client(memory).get("/orders/messages/1")).text


async def test_a_timeline_has_only_what_happened_at_its_own_destination(memory: OpenStore, build_client: Build) -> None:
    billing = sample(destination="billing")
    await memory.writer.insert([billing, replace(billing, destination="mail")])
    relay = Relaying(memory.store, "billing")
    await relay.start()
    await relay.fail("billing", [1], "answered 500")
    client = build_client(memory)

    def cut(page: str) -> str:
        return page[page.index('id="timeline"') :].partition("</section>")[0]

    assert "answered 500" in cut((await client.get("/orders/messages/1")).text)
    assert "answered 500" not in cut((await client.get("/orders/messages/2")).text)


@pytest.mark.parametrize(("count", "text"), [(1, "1 waits behind it"), (10, "10 wait behind"), (11, "10+ wait behind")])
async def test_a_message_says_how_many_wait_behind_it(
    count: int, text: str, memory: OpenStore, build_client: Build
) -> None:
    await memory.writer.insert([sample(key="a") for _ in range(count + 1)])

    assert text in (await build_client(memory).get("/orders/messages/1")).text


@pytest.mark.parametrize(
    ("role", "read_only", "shown"),
    [
        (Role.VIEWER, False, []),
        (Role.OPERATOR, False, ["Redrive"]),
        (Role.OWNER, False, ["Redrive", "Discard"]),
        (Role.OWNER, True, []),
    ],
)
async def test_lists_offer_what_a_role_may_do(
    role: Role, read_only: bool, shown: list[str], memory: OpenStore, build_client: Build
) -> None:
    await fill(memory.store, memory.writer)
    client = build_client(memory, role=role, read_only=read_only)
    (group, _) = (await client.json("/orders/failures"))["failures"]

    page = (await client.get("/orders/messages?state=failed&destination=billing")).text
    assert [verb for verb in ("Redrive", "Discard") if f"{verb} chosen" in page] == shown
    assert [verb for verb in ("Redrive", "Discard") if f"{verb} all that match" in page] == shown
    query = f"destination=billing&fingerprint={quote_plus(group['fingerprint'])}"
    page = (await client.get(f"/orders/failures/group?{query}")).text
    assert [verb for verb in ("Redrive", "Discard") if f"{verb} the group" in page] == shown
    assert ("Add a note" in page) == bool(shown)


async def test_a_form_has_an_id_so_that_sending_it_twice_is_one_job(memory: OpenStore, build_client: Build) -> None:
    await fill(memory.store, memory.writer)
    client = build_client(memory)

    page = (await client.get("/orders/redrive?state=failed&destination=billing")).text
    form = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page))
    assert (form["state"], form["destination"]) == ("failed", "billing")
    sent = [(await client.post("/orders/redrive", form)).headers["location"] for _ in range(2)]
    assert sent[0] == sent[1]
    assert sent[0].endswith(form["job"])


# --- failures and inboxes ---


async def test_a_note_is_shown_with_its_own_group_alone(memory: OpenStore, build_client: Build) -> None:
    await fill(memory.store, memory.writer)
    client = build_client(memory)
    form = {"destination": "billing", "fingerprint": "this cause", "note": "they open the account"}
    await client.post("/orders/failures/note", form)

    path = "/orders/failures/group?destination={}&fingerprint={}"
    assert "they open the account" in (await client.get(path.format("billing", "this cause"))).text
    assert "they open the account" not in (await client.get(path.format("billing", "other cause"))).text
    assert "they open the account" not in (await client.get(path.format("audit", "this cause"))).text


async def test_a_failed_message_of_an_inbox_is_found_by_its_source_too(memory: OpenStore, build_client: Build) -> None:
    message = sample()
    for source in ("/shop", "/other"):
        failed = Fail(names=Names(), consumer="invoices", source=source, message_id="m", attempts=3,
                      error=f"error of {source}", message=to_incoming(message))  # fmt: skip
        await memory.writer.execute(failed)
    client = build_client(memory)

    for source in ("/shop", "/other"):
        page = (await client.get(f"/orders/inbox/message?consumer=invoices&message_id=m&source={source}")).text
        assert f"error of {source}" in page
    missing = await client.get("/orders/inbox/message?consumer=invoices&message_id=m&source=/nowhere")
    assert missing.status_code == 404


async def test_a_look_at_the_payload_of_an_inbox_is_journalled_if_that_is_wanted(
    memory: OpenStore, build_client: Build
) -> None:
    failed = Fail(names=Names(), consumer="invoices", source="/shop", message_id="m", attempts=3, error="no",
                  message=to_incoming(sample()))  # fmt: skip
    await memory.writer.execute(failed)
    path = "/orders/inbox/payload?consumer=invoices&message_id=m"

    assert (await build_client(memory).get(path)).status_code == 200
    assert not await memory.store.journal(actions=["payload_viewed"], messages=False)
    assert (await build_client(memory, journal_payloads=True).get(path)).status_code == 200
    (entry,) = await memory.store.journal(actions=["payload_viewed"], messages=False)
    assert (entry.by, entry.destination, entry.detail) == ("ann", "inbox:invoices", "/shop m")


# --- relays and activity ---


async def test_relays_say_what_they_cannot_reach_and_whether_they_sleep(memory: OpenStore, build_client: Build) -> None:
    relay = Relaying(memory.store, "billing", "mail", reachable=["mail"])
    relay.info = replace(relay.info, asleep=True)
    await relay.start()
    client = build_client(memory)

    page = (await client.get("/orders/relays")).text
    assert re.findall(r'<a class="bad" href="[^"]*">(\w+)</a>', page) == ["billing"]
    assert '<span class="chip chip-asleep">asleep</span>' in page
    await memory.store.renew(relay.info.relay_id, lease=relay.lease, reachable=["billing", "mail"], asleep=False)
    page = (await build_client(memory).get("/orders/relays")).text
    assert 'class="bad"' not in page
    assert '<span class="chip chip-awake">awake</span>' in page


async def test_activity_has_pages_the_latest_first(memory: OpenStore, build_client: Build) -> None:
    for number in range(230):
        await memory.store.note("note", by="ann", detail=f"line {number}", destination="billing")
    client = build_client(memory)
    seen: list[str] = []
    before: int | None = None
    sizes = []
    while True:
        document = await client.json("/orders/activity" + (f"?before={before}" if before else ""))
        seen += [one["detail"] for one in document["journal"]]
        sizes.append(len(document["journal"]))
        before = document["next"]
        if before is None:
            break

    assert seen == [f"line {number}" for number in range(229, -1, -1)]
    assert sizes == [100, 100, 30]


def test_the_csv_of_activity_hides_secrets() -> None:
    table = to_csv([entry(Action.PAUSED, 0, reason="see password=hunter2", error="token=abc123secret")])

    assert "hunter2" not in table
    assert "abc123secret" not in table


# --- jobs and shared reads ---


def build_job(name: str, store: str = "orders") -> Job:
    return Job(name, store=store, title=name, done_word="redriven", total=10, by="ann", reason="", started_at=NOW)


def test_a_job_is_listed_with_its_store_and_counts_what_it_skipped_as_done() -> None:
    jobs = Jobs()
    for name, store in (("a", "orders"), ("b", "billing"), ("c", "orders")):
        jobs._jobs[store, name] = build_job(name, store)

    assert [one.id for one in jobs.list_latest("orders")] == ["c", "a"]
    assert [one.id for one in jobs.list_latest("orders", limit=1)] == ["c"]
    job = build_job("d")
    job.changed, job.without_payload = 3, 4
    assert job.share == 70


async def test_a_job_that_runs_is_kept_however_many_follow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pillarbox.dashboard.jobs._MOST_KEPT", 3)
    jobs = Jobs()

    async def end(_: Job) -> None:
        return

    async def wait(_: Job) -> None:
        await asyncio.Event().wait()

    running = jobs.start(build_job("running"), wait)
    for number in range(6):
        job = jobs.start(build_job(f"job-{number}"), end)
        assert job.task is not None
        await job.task
    assert jobs.get("running") is running
    assert jobs.get("job-0") is None
    assert jobs.get("job-5") is not None
    await jobs.close()
    assert (running.state, running.note) == ("cancelled", "The dashboard was stopped.")


async def test_a_shared_read_that_failed_is_tried_again() -> None:
    shared = SharedReads(seconds=60)
    asked: list[UUID] = []

    async def read() -> str:
        asked.append(UUID(int=len(asked)))
        if len(asked) == 1:
            raise StoreUnavailable("away")
        return "there"

    with pytest.raises(StoreUnavailable):
        await shared.ask("now", read, (), {})
    assert [await shared.ask("now", read, (), {}) for _ in range(2)] == ["there", "there"]
    assert len(asked) == 2
