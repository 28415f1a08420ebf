"""Actions: counted first, asked, run once as a job, and journalled with the user."""

from __future__ import annotations

import asyncio
import html
import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from pillarbox.cli.inbox import inbox as inbox_commands
from pillarbox.contracts.store import Selection
from pillarbox.contracts.writer import Fail
from pillarbox.dashboard import Role, listing
from pillarbox.dashboard import inbox as inbox_module
from pillarbox.dashboard import jobs as jobs_module
from pillarbox.errors import StoreUnavailable
from pillarbox.message import Names, State
from pillarbox.testing.samples import sample
from tests.support.dashboard.client import Client
from tests.support.dashboard.seed import Filled, Relaying, fill, to_incoming
from tests.support.dashboard.stores import OpenStore

Build = Callable[..., Client]


async def find(opened: OpenStore, message_id: int) -> Any:
    (found,) = await opened.store.find(Selection(ids=[message_id]), limit=1)
    return found


async def test_a_redrive_is_counted_by_state_with_examples_before_it_runs(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    client = build_client(opened)

    asked = await client.json("/orders/redrive?destination=billing")
    assert (asked["matched"], asked["matched_by_state"], len(asked["examples"])) == (3, {"failed": 3}, 3)
    assert (await find(opened, filled.messages["failed"].id)).state is State.FAILED


async def test_a_redrive_changes_all_that_match_and_says_who_and_why(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    client = build_client(opened)

    job = await client.act("/orders/redrive", {"destination": "billing", "reason": "accounts are there"})
    assert (job["state"], job["matched"], job["changed"]) == ("done", 3, 3)
    assert (await find(opened, filled.messages["failed"].id)).state is State.PENDING
    lines = await opened.store.journal(actions=["redriven"], messages=False)
    (line,) = [one for one in lines if one.message_id is None]
    assert (line.by, line.reason, line.detail, line.destination) == (
        "ann",
        "accounts are there",
        f"3 messages, job {job['id']}",
        "billing",
    )
    assert msgspec.json.decode(line.selection or "")["destination"] == "billing"


async def test_the_same_form_sent_twice_is_one_job(opened: OpenStore, filled: Filled, build_client: Build) -> None:
    client = build_client(opened)
    form = {"ids": str(filled.messages["failed"].id), "job": "abcdef0123456789"}

    first = await client.act("/orders/redrive", form)
    second = await client.act("/orders/redrive", form)
    assert first["id"] == second["id"] == "abcdef0123456789"
    assert second["changed"] == 1
    redriven = await opened.store.journal(message_id=filled.messages["failed"].message_id)
    assert [one.action for one in redriven].count("redriven") == 1


async def test_a_discard_needs_a_reason(opened: OpenStore, filled: Filled, build_client: Build) -> None:
    client = build_client(opened)
    form = {"ids": str(filled.messages["failed"].id)}

    refused = await client.post("/orders/discard", form)
    assert refused.status_code == 400
    assert "Say why" in refused.text
    job = await client.act("/orders/discard", {**form, "reason": "sent by hand"})
    assert job["changed"] == 1
    assert (await find(opened, filled.messages["failed"].id)).state is State.DISCARDED


async def skip(opened: OpenStore, filled: Filled) -> int:
    """Close the message that no route took, as a relay does it."""
    relay = Relaying(opened.store, "_skipped")
    await relay.start()
    skipped = filled.messages["skipped"].id
    await relay.skip([skipped])
    return skipped


async def test_what_no_route_takes_is_shown_and_sent_to_a_destination_that_is_named(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    client = build_client(opened)
    skipped = await skip(opened, filled)

    assert (await client.json("/orders/"))["skipped"] == 1
    overview = (await client.get("/orders/")).text
    assert "because no route takes it" in overview
    assert '<span class="badge" id="skipped-badge" title="sent nowhere: no route takes them">1</span>' in overview
    assert "Redrive chosen" in (await client.get("/orders/messages?state=skipped")).text
    for path in (f"/orders/redrive?ids={skipped}", "/orders/redrive?state=skipped"):
        asked = await client.get(path)
        assert 'list="destinations" required>' in asked.text
        assert '<option value="billing">' in asked.text
        assert (await client.json(path))["matched_by_state"] == {"skipped": 1}
    nowhere = await client.post("/orders/redrive", {"ids": str(skipped)})
    assert (nowhere.status_code, "Say to which destination" in nowhere.text) == (400, True)
    unknown = await client.post("/orders/redrive", {"ids": str(skipped), "to": "biling"})
    assert (unknown.status_code, "There is no destination biling" in unknown.text) == (400, True)
    job = await client.act("/orders/redrive", {"ids": str(skipped), "to": "billing"})
    assert (job["state"], job["changed"]) == ("done", 1)
    sent = await find(opened, skipped)
    assert (sent.state, sent.destination) == (State.PENDING, "billing")


async def test_what_no_route_takes_can_be_discarded(opened: OpenStore, filled: Filled, build_client: Build) -> None:
    client = build_client(opened)

    skipped = await skip(opened, filled)
    job = await client.act("/orders/discard", {"state": "skipped", "reason": "a typo"})
    assert (job["state"], job["changed"]) == ("done", 1)
    assert (await find(opened, skipped)).state is State.DISCARDED
    sample = await client.dashboard.sampler.get("orders", fresh=True)
    assert sample.status is not None
    assert sample.status.skipped == 0


async def test_a_delivered_message_is_replayed_and_a_waiting_one_deferred(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    client = build_client(opened)

    assert (await client.act("/orders/replay", {"ids": str(filled.messages["caused"].id)}))["changed"] == 1
    waiting = filled.messages["waiting"].id
    assert (await client.act("/orders/defer", {"ids": str(waiting), "for": "2h"}))["changed"] == 1
    assert (await find(opened, waiting)).available_at > await opened.store.now()
    assert (await client.post("/orders/defer", {"ids": str(waiting), "for": "soon"})).status_code == 400


async def test_above_a_thousand_the_number_must_be_typed(memory: OpenStore, build_client: Build) -> None:
    await memory.writer.insert([sample(destination="billing") for _ in range(1_001)])
    client = build_client(memory)
    form = {"destination": "billing", "reason": "moved"}

    assert "Type <b>1001</b>" in (await client.get("/orders/discard?destination=billing")).text
    refused = await client.post("/orders/discard", form)
    assert (refused.status_code, "Type the number 1001" in refused.text) == (400, True)
    assert (await client.post("/orders/discard", {**form, "typed": "1000"})).status_code == 400
    job = await client.act("/orders/discard", {**form, "typed": "1,001"})
    assert job["changed"] == 1_001


async def test_an_action_without_a_filter_is_refused(memory: OpenStore, build_client: Build) -> None:
    client = build_client(memory)

    assert (await client.get("/orders/discard")).status_code == 400
    assert (await client.post("/orders/discard", {"reason": "all"})).status_code == 400


async def test_what_cannot_be_changed_any_more_says_so(opened: OpenStore, filled: Filled, build_client: Build) -> None:
    client = build_client(opened)

    job = await client.act("/orders/redrive", {"ids": str(filled.messages["cause"].id)})
    assert job["state"] == "failed"
    assert "is delivered and cannot be redriven" in job["note"]


async def test_a_job_is_cancelled_between_two_batches(
    memory: OpenStore, build_client: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    await memory.writer.insert([sample(destination="billing") for _ in range(900)])
    client = build_client(memory)
    reached, go_on = asyncio.Event(), asyncio.Event()
    change = jobs_module.change_batch

    async def change_slowly(*args: Any, **more: Any) -> Any:
        result = await change(*args, **more)
        reached.set()
        await go_on.wait()
        return result

    monkeypatch.setattr(jobs_module, "change_batch", change_slowly)
    answer = await client.post("/orders/discard", {"destination": "billing", "reason": "moved"})
    location = answer.headers["location"]
    await reached.wait()
    running = await client.json(location)
    assert (running["state"], running["changed"]) == ("running", 0)
    assert (await client.post(f"{location}/cancel", {})).status_code == 303
    go_on.set()
    job = client.dashboard.jobs.get(location.rpartition("/")[2])
    assert job is not None
    assert job.task is not None
    await job.task

    assert (job.state, job.changed) == ("cancelled", 500)
    (line,) = await memory.store.journal(actions=["discarded"], messages=False)
    assert line.detail == f"500 messages, job {job.id}"


async def test_a_probe_that_is_delivered_lets_the_rest_follow(memory: OpenStore, build_client: Build) -> None:
    filled = await fill(memory.store, memory.writer)
    client = build_client(memory)
    form = {"destination": "billing", "state": "failed"}

    answer = await client.post("/orders/probe", form)
    job = client.dashboard.jobs.get(answer.headers["location"].rpartition("/")[2])
    assert job is not None
    assert job.task is not None
    await _wait_for(lambda: job.changed == 1)
    relay = Relaying(memory.store, "billing")
    await memory.store.leave((await memory.store.registry(lease=relay.lease)).relays[0].relay_id)
    await relay.start()
    await relay.deliver("billing", [filled.messages["failed"].id])
    await asyncio.wait_for(job.task, 30)

    assert (job.state, job.changed) == ("done", 3)


async def test_a_probe_that_fails_again_leaves_the_rest_alone(memory: OpenStore, build_client: Build) -> None:
    filled = await fill(memory.store, memory.writer)
    client = build_client(memory)

    answer = await client.post("/orders/probe", {"destination": "billing"})
    job = client.dashboard.jobs.get(answer.headers["location"].rpartition("/")[2])
    assert job is not None
    assert job.task is not None
    await _wait_for(lambda: job.changed == 1)
    relay = Relaying(memory.store, "billing")
    await memory.store.leave((await memory.store.registry(lease=relay.lease)).relays[0].relay_id)
    await relay.start()
    await relay.fail("billing", [filled.messages["failed"].id], "answered 422 again")
    await asyncio.wait_for(job.task, 30)

    assert (job.state, job.changed, job.rest) == ("failed", 1, 2)
    assert "failed again: answered 422 again" in job.note
    page = (await client.get(f"/orders/jobs/{job.id}")).text
    assert "1 message redriven, 2 left as they are: the probe failed again." in page
    assert ("<h1>Failed" in page, "chip-failed" in page, "chip-done" in page) == (True, True, False)
    assert "no longer matched" not in page
    assert await memory.store.count(Selection(states=[State.FAILED], destination="billing")) == 3


async def test_a_probe_of_more_than_a_thousand_asks_for_their_number(memory: OpenStore, build_client: Build) -> None:
    client = build_client(memory)
    await memory.writer.insert([sample(destination="billing") for _ in range(1_001)])
    relay = Relaying(memory.store, "billing")
    await relay.start()
    ids = [one.id for one in await memory.store.find(Selection(), limit=2_000)]
    await relay.fail("billing", ids, "answered 422")
    form = {"destination": "billing", "fingerprint": "answered 422", "job": "a1b2c3d4e5"}

    page = (await client.get("/orders/failures/group?destination=billing&fingerprint=answered+422")).text
    assert 'Type <b>1001</b> to confirm <input name="typed"' in page
    for more in ({}, {"typed": "1000"}, {"typed": "1001", "reason": "x" * 501}):
        refused = await client.post("/orders/probe", {**form, **more})
        assert refused.status_code == 400
    assert client.dashboard.jobs.get("a1b2c3d4e5") is None
    assert (await client.post("/orders/probe", {**form, "typed": "1,001"})).status_code == 303


async def _wait_for(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - the job has no event for it
        await asyncio.sleep(0.01)


async def test_a_destination_is_paused_with_a_reason_resumed_and_probed(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    client = build_client(opened)

    refused = await client.post("/orders/destinations/billing/pause", {"reason": " "})
    assert (refused.status_code, "Say why" in refused.text) == (400, True)
    assert (await client.post("/orders/destinations/billing/pause", {"reason": "they move"})).status_code == 303
    pauses = {one.destination: one for one in await opened.store.pauses()}
    assert (pauses["billing"].by, pauses["billing"].reason) == ("ann", "they move")
    assert "Paused by ann" in (await client.get("/orders/destinations/billing")).text
    for _ in range(2):  # the second finds it resumed
        assert (await client.post("/orders/destinations/billing/resume", {})).status_code == 303
    assert "billing" not in {one.destination for one in await opened.store.pauses()}
    assert (await client.post("/orders/destinations/billing/probe", {})).status_code == 303
    refused = await client.post("/orders/destinations/unserved/probe", {})
    assert (refused.status_code, "No live relay serves unserved" in refused.text) == (400, True)
    assert (await client.post("/orders/destinations/nobody/pause", {"reason": "x"})).status_code == 404
    actions = [one.action for one in await opened.store.journal(destination="billing", by="ann", messages=False)]
    assert actions == ["paused", "resumed", "probed"]


async def test_a_note_stays_with_its_group(opened: OpenStore, filled: Filled, build_client: Build) -> None:
    client = build_client(opened)
    group = (await client.json("/orders/failures"))["failures"][0]
    form = {"destination": group["destination"], "fingerprint": group["fingerprint"], "note": "they open the account"}

    answer = await client.post("/orders/failures/note", form)
    assert "they open the account" in (await client.get(answer.headers["location"])).text
    assert (await client.post("/orders/failures/note", {**form, "note": ""})).status_code == 400


async def test_messages_of_an_inbox_are_redriven_and_discarded(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    client = build_client(opened)

    assert (await client.post("/orders/inbox/discard", {"consumer": "invoices"})).status_code == 400
    assert (await client.post("/orders/inbox/redrive", {})).status_code == 400
    job = await client.act("/orders/inbox/redrive", {"consumer": "invoices"})
    assert (job["state"], job["changed"]) == ("done", 1)
    again = await client.act("/orders/inbox/discard", {"consumer": "invoices", "reason": "done by hand"})
    assert again["changed"] == 0


@pytest.mark.parametrize("role", [Role.VIEWER, Role.READER, Role.OPERATOR, Role.OWNER])
async def test_a_read_only_dashboard_has_no_actions_whoever_asks(
    role: Role, memory: OpenStore, build_client: Build
) -> None:
    filled = await fill(memory.store, memory.writer)
    client = build_client(memory, role=role, read_only=True)

    assert not any(route.changes for route in client.dashboard.routes)
    assert (await client.post("/orders/redrive", {"destination": "billing"})).status_code in (404, 405)
    assert (await client.get("/orders/redrive?destination=billing")).status_code == 404
    page = (await client.get(f"/orders/messages/{filled.messages['failed'].id}")).text
    assert "/orders/redrive" not in page
    assert "This dashboard is read-only." in page


async def test_the_result_of_a_job_outlives_the_process_that_ran_it(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    job = await build_client(opened).act("/orders/redrive", {"destination": "billing", "reason": "accounts are there"})
    other = build_client(opened)

    kept = await other.json(f"/orders/jobs/{job['id']}")
    assert (kept["state"], kept["journal"]["by"]) == ("ended", "ann")
    assert kept["journal"]["detail"] == f"3 messages, job {job['id']}"
    assert "3 messages" in (await other.get(f"/orders/jobs/{job['id']}")).text
    assert (await other.get("/orders/jobs/0123456789abcdef")).status_code == 404


async def test_counting_ends_and_the_bounded_number_must_be_typed(
    memory: OpenStore, build_client: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_WINDOW", 10)
    monkeypatch.setattr(listing, "LOOKED_AT", 30)
    await memory.writer.insert([sample(topic="many") for _ in range(100)])
    client = build_client(memory)

    asked = await client.json("/orders/discard?topic=many")
    assert (asked["matched"], asked["more"]) == (30, True)
    assert "Discard 30+ messages" in (await client.get("/orders/discard?topic=many")).text
    form = {"topic": "many", "reason": "no"}
    assert (await client.post("/orders/discard", form)).status_code == 400
    job = await client.act("/orders/discard", {**form, "typed": "30"})
    assert (job["changed"], job["more"], job["changed_elsewhere"]) == (100, True, 0)


# --- what jobs say ---


def build_job(**values: Any) -> jobs_module.Job:
    job = jobs_module.Job(
        "0123456789abcdef", store="orders", title="", done_word="redriven", total=10, by="ann", reason="",
        started_at=datetime(2026, 1, 31, tzinfo=UTC), more=values.pop("more", False),
    )  # fmt: skip
    for name, value in values.items():
        setattr(job, name, value)
    return job


@pytest.mark.parametrize(("values", "state", "headline", "text"), [
    ({"changed": 10}, "done", "Done", "10 messages redriven."),
    ({"changed": 7}, "partly", "Partly done",
     "7 messages redriven, 3 skipped: they no longer matched, or a relay was sending them."),
    ({"changed": 6, "without_payload": 4}, "partly", "Partly done",
     "6 messages redriven, 4 skipped: their payload was not kept."),
    ({"changed": 0}, "partly", "Nothing was changed",
     "0 messages redriven, 10 skipped: they no longer matched, or a relay was sending them."),
    ({"changed": 4, "is_cancelled": True}, "cancelled", "Cancelled", "4 messages redriven, 6 left as they are."),
    ({"changed": 40, "more": True}, "done", "Done", "40 messages redriven."),
])  # fmt: skip
def test_a_job_says_truthfully_how_it_ended(values: dict[str, Any], state: str, headline: str, text: str) -> None:
    job = build_job(**values)
    job.state = jobs_module._judge(job)

    assert (job.state, job.headline, job.describe()) == (state, headline, text)


async def test_a_job_that_an_error_stopped_says_what_is_left(memory: OpenStore, build_client: Build) -> None:
    job = build_job(changed=4)

    async def run(_: jobs_module.Job) -> None:
        raise StoreUnavailable("The store is away.")

    jobs = jobs_module.Jobs()
    task = jobs.start(job, run).task
    assert task is not None
    await task
    assert (job.state, job.headline, job.note) == ("failed", "Failed", "The store is away.")
    assert job.describe() == "4 messages redriven, 6 left as they are."


async def fail_in_inbox(opened: OpenStore, count: int, *, kept: bool = True) -> None:
    for number in range(count):
        message = sample(type="orders.placed", source="/shop")
        await opened.writer.execute(
            Fail(names=Names(), consumer="invoices", source="/shop", message_id=f"m-{number}", attempts=3,
                 error="ValueError: no", message=to_incoming(message) if kept else None)
        )  # fmt: skip


async def test_many_messages_of_an_inbox_are_counted_and_their_number_is_typed(
    memory: OpenStore, build_client: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_module, "_LISTED", 10)
    await fail_in_inbox(memory, 1_050)
    client = build_client(memory)

    asked = await client.json("/orders/inbox/discard?consumer=invoices")
    assert (asked["matched"], asked["more"]) == (1_050, False)
    part = await client.json("/orders/inbox/discard?consumer=invoices&error=valueerror")
    assert (part["matched"], part["more"]) == (10, True)
    page = (await client.get("/orders/inbox/discard?consumer=invoices&error=valueerror")).text
    assert "Discard 10+ messages" in page
    assert "pillarbox inbox discard --consumer invoices --error valueerror --reason why" in page
    form = {"consumer": "invoices", "reason": "done by hand"}
    for refused in (form, {**form, "error": "valueerror"}, {**form, "typed": "10"}):
        assert (await client.post("/orders/inbox/discard", refused)).status_code == 400
    job = await client.act("/orders/inbox/discard", {**form, "typed": "1,050"})
    assert (job["state"], job["matched"], job["changed"]) == ("done", 1_050, 1_050)


@pytest.mark.parametrize("message_id", ["--yes", "--error=x", "-h", "a; rm -rf x", "$(id)", "m-1"])
async def test_a_command_names_the_message_whatever_its_id_is(
    message_id: str, memory: OpenStore, build_client: Build
) -> None:
    await memory.writer.execute(
        Fail(names=Names(), consumer="my invoices", source="/shop", message_id=message_id, attempts=3,
             error="ValueError: no", message=to_incoming(sample()))
    )  # fmt: skip
    client = build_client(memory)
    query = urlencode({"consumer": "my invoices", "message_id": message_id})

    for path, command in (("message", "show"), ("redrive", "redrive"), ("discard", "discard")):
        page = (await client.get(f"/orders/inbox/{path}?{query}")).text
        (text,) = re.findall('data-copy="([^"]*)"', page)
        words = shlex.split(html.unescape(text))
        assert words[:3] == ["pillarbox", "inbox", command]
        with inbox_commands.commands[command].make_context(command, words[3:]) as context:
            given = context.params.get("message_ids", (context.params.get("message_id"),))
            assert (given, context.params["consumer"]) == ((message_id,), "my invoices")
            assert not context.params.get("yes")


async def test_what_arrived_and_was_not_kept_is_the_reason_that_a_job_of_an_inbox_says(
    memory: OpenStore, build_client: Build
) -> None:
    await fail_in_inbox(memory, 2, kept=False)
    client = build_client(memory)

    job = await client.act("/orders/inbox/redrive", {"consumer": "invoices"})
    assert (job["state"], job["changed"], job["without_payload"], job["changed_elsewhere"]) == ("partly", 0, 2, 0)
    assert job["result"] == "0 messages redriven, 2 skipped: their payload was not kept."
