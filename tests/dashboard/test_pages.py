"""Every page answers people and programs, on every store."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import pytest

from pillarbox.contracts.store import Selection
from pillarbox.contracts.writer import Accept
from pillarbox.dashboard import Role
from pillarbox.message import Names, State
from tests.support.dashboard.client import Client
from tests.support.dashboard.seed import Filled
from tests.support.dashboard.stores import OpenStore

Build = Callable[..., Client]


def list_paths(filled: Filled) -> list[str]:
    one = filled.messages
    inbox = f"consumer=invoices&message_id={filled.inbox_message.message_id}"
    return [
        "", "charts", "charts?window=24h", "charts?window=7d&destination=billing", "messages", "messages?state=failed",
        "messages?state=delivered&order=id", "messages?destination=billing",
        "messages?error=account&attempts=1&since=1h", "messages?phase=due", "messages?phase=later",
        "messages?phase=parked", "messages?phase=held", "messages?state=failed&before=9999",
        "messages?state=pending&newer=1",
        "messages?type=nothing&columns=key,error",
        f"messages/{one['failed'].id}", f"messages/{one['held'].id}", f"messages/{one['retried'].id}",
        f"messages/{one['cause'].message_id}", f"messages/{one['sending'].id}", f"messages/{one['cause'].id}/payload",
        "failures", "failures?sort=latest", "destinations", "destinations/billing", "destinations/audit?window=15m",
        "destinations/audit/pause", "chains", f"chains?id={filled.correlation_id}",
        f"chains?id={filled.correlation_id}&view=sequence", "inbox", "inbox?consumer=invoices",
        f"inbox?handled={one['cause'].message_id}", f"inbox/message?{inbox}", f"inbox/payload?{inbox}",
        "inbox/redrive?consumer=invoices", "inbox/discard?consumer=invoices", "relays", "activity", "activity?all=1",
        "activity?by=ann&action=paused", "system", "system?doctor=1", "redrive?state=failed&destination=billing",
        "discard?topic=nothing",
        f"discard?ids={one['failed'].id}", f"defer?ids={one['waiting'].id}", f"replay?ids={one['cause'].id}",
    ]  # fmt: skip


async def test_every_page_answers_as_html_and_as_json(opened: OpenStore, filled: Filled, build_client: Build) -> None:
    client = build_client(opened)

    for path in list_paths(filled):
        page = await client.get(f"/orders/{path}")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8"), path
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert "<script>" not in page.text
        assert " style=" not in page.text
        await client.json(f"/orders/{path}")


async def test_the_overview_is_the_status_of_the_command_line(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    document = await build_client(opened).json("/orders/")

    billing = next(one for one in document["destinations"] if one["name"] == "billing")
    assert (billing["failed"], billing["relays"]) == (3, 1)
    assert {alert["name"] for alert in document["alerts"]} >= {"failed", "unserved"}


async def test_messages_are_listed_by_state_and_by_filters_that_stand_in_the_address(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    client = build_client(opened)

    found = await client.json("/orders/messages?state=failed&destination=billing")
    assert {one["state"] for one in found["messages"]} == {"failed"}
    assert len(found["messages"]) == 3
    assert "payload" not in found["messages"][0]
    page = (await client.get("/orders/messages?key=order-42")).text
    assert "order-42" in page
    assert (await client.get("/orders/messages?state=nonsense")).status_code == 400
    assert (await client.get("/orders/messages?since=yesterday-ish")).status_code == 400


async def test_pages_follow_each_other_by_key(memory: OpenStore, build_client: Build) -> None:
    from pillarbox.testing.samples import sample

    await memory.writer.insert([sample() for _ in range(120)])
    client = build_client(memory)
    seen: list[int] = []
    path = "/orders/messages?state=pending&order=id"
    while True:
        document = await client.json(path)
        seen += [one["id"] for one in document["messages"]]
        if document["next"] is None:
            break
        path = f"/orders/messages?state=pending&order=id&after={document['next']}"

    assert seen == sorted(seen)
    assert len(seen) == len(set(seen)) == 120


async def test_pages_go_down_from_the_newest_and_up_again(memory: OpenStore, build_client: Build) -> None:
    from pillarbox.testing.samples import sample

    await memory.writer.insert([sample() for _ in range(120)])
    client = build_client(memory)
    ids = [one.id for one in await memory.store.find(Selection(), limit=200)]

    first = await client.json("/orders/messages?state=pending")
    second = await client.json(f"/orders/messages?state=pending&before={first['next']}")
    third = await client.json(f"/orders/messages?state=pending&before={second['next']}")
    pages = [[one["id"] for one in page["messages"]] for page in (first, second, third)]
    assert pages == [ids[:69:-1], ids[69:19:-1], ids[19::-1]]
    assert third["next"] is None
    up = await client.json(f"/orders/messages?state=pending&newer={pages[2][0]}")
    assert [one["id"] for one in up["messages"]] == pages[1]
    html = (await client.get(f"/orders/messages?state=pending&before={second['next']}")).text
    assert f"newer={pages[2][0]}" in html


async def test_pending_messages_have_tabs_by_where_they_stand(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    client = build_client(opened)

    async def list_ids(query: str) -> list[int]:
        return [one["id"] for one in (await client.json(f"/orders/messages?{query}"))["messages"]]

    assert filled.messages["behind"].id in await list_ids("phase=parked")
    assert await list_ids("phase=later") == [filled.messages["retried"].id]
    assert await list_ids("phase=held") == [filled.messages["held"].id]
    due = await list_ids("phase=due")
    assert filled.messages["waiting"].id in due
    assert not {filled.messages[name].id for name in ("behind", "retried", "held", "sending")} & set(due)
    page = (await client.get("/orders/messages?state=pending")).text
    assert 'parked <span class="tab-count">2</span>' in page
    assert 'later <span class="tab-count">1</span>' in page
    assert 'held <span class="tab-count">1</span>' in (await client.get("/orders/messages?state=failed")).text
    assert (await client.get("/orders/messages?phase=sideways")).status_code == 400
    assert (await client.get("/orders/discard?phase=due&destination=billing")).status_code == 400


async def test_columns_can_be_left_out(memory: OpenStore, build_client: Build) -> None:
    from tests.support.dashboard.seed import fill

    await fill(memory.store, memory.writer)
    client = build_client(memory)

    whole = (await client.get("/orders/messages?state=failed")).text
    part = (await client.get("/orders/messages?state=failed&columns=key,error")).text
    assert "<th>type</th>" in whole
    assert "<th>type</th>" not in part
    assert "<th>key</th>" in part
    assert (await client.get("/orders/messages?columns=secret")).status_code == 400


async def test_an_inbox_says_what_consumers_did_and_how_often_a_message_came_again(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    cause = filled.messages["cause"]
    accept = Accept(names=Names(), consumer="billing", source="/shop", message_id=str(cause.message_id))
    assert await opened.writer.execute(accept) is False
    client = build_client(opened)

    document = await client.json(f"/orders/inbox?handled={cause.message_id}")
    consumers = {one["consumer"]: one for one in document["consumers"]}
    assert (consumers["billing"]["handled"], consumers["billing"]["duplicates"]) == (1, 1)
    assert consumers["billing"]["per_minute"] > 0
    assert (consumers["invoices"]["handled"], consumers["invoices"]["failed"]) == (0, 1)
    (record,) = document["records"]
    assert (record["consumer"], record["status"], record["duplicates"]) == ("billing", "done", 1)


async def test_lanes_show_what_waits_in_them(opened: OpenStore, filled: Filled, build_client: Build) -> None:
    document = await build_client(opened).json("/orders/destinations/audit")

    (lane,) = document["lane_backlogs"]
    assert (lane["partition"], lane["due"]) == (filled.messages["behind"].partition, 2)
    assert lane["oldest_at"] is not None


async def test_the_system_says_which_version_and_how_old_the_oldest_transaction_is(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    facts = (await build_client(opened).json("/orders/system"))["facts"]

    assert facts["server"]
    assert (facts["schema_version"] is None) == (opened.store.features.name == "memory")
    assert "oldest_transaction" in facts


async def test_a_chain_is_a_sequence_of_arrows(opened: OpenStore, filled: Filled, build_client: Build) -> None:
    page = (await build_client(opened).get(f"/orders/chains?id={filled.correlation_id}&view=sequence")).text

    assert "arrow-label" in page
    assert "orders.placed" in page
    assert ">/shop</text>" in page


async def test_a_payload_is_shown_on_request_with_its_numbers_as_they_are(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    client = build_client(opened)
    cause = filled.messages["cause"]

    assert "12345678901234567890" not in (await client.get(f"/orders/messages/{cause.id}")).text
    assert "12345678901234567890" in (await client.get(f"/orders/messages/{cause.id}/payload")).text
    download = await client.get(f"/orders/messages/{cause.id}/payload?download=1")
    assert download.content == cause.payload
    assert download.headers["content-disposition"].startswith("attachment")


async def test_whoever_looks_at_a_payload_is_journalled_if_the_dashboard_is_told_to(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    cause = filled.messages["cause"]

    await build_client(opened).get(f"/orders/messages/{cause.id}/payload")
    assert not await opened.store.journal(actions=["payload_viewed"])
    await build_client(opened, journal_payloads=True).get(f"/orders/messages/{cause.id}/payload")
    (entry,) = await opened.store.journal(actions=["payload_viewed"])
    assert (entry.by, entry.detail) == ("ann", f"message {cause.id}")


async def test_a_message_that_is_gone_is_a_page_with_a_way_back(memory: OpenStore, build_client: Build) -> None:
    page = await build_client(memory).get("/orders/messages/4711")

    assert page.status_code == 404
    assert "There is no message 4711" in page.text
    assert '"/orders/messages"' in page.text


async def test_search_finds_a_message_a_chain_and_a_key(opened: OpenStore, filled: Filled, build_client: Build) -> None:
    client = build_client(opened)
    cause = filled.messages["cause"]

    async def find(text: str) -> str:
        return (await client.get(f"/orders/search?q={quote(text)}")).headers["location"]

    assert await find(str(cause.id)) == f"/orders/messages/{cause.id}"
    assert (await find(str(cause.message_id))).startswith("/orders/messages/")
    assert await find(filled.correlation_id) == f"/orders/chains?id={filled.correlation_id}"
    assert await find("order-42") == "/orders/messages?key=order-42"
    assert await find('dest:billing error:"no account" state:failed') == (
        "/orders/messages?state=failed&destination=billing&error=no+account"
    )


async def test_a_message_shows_its_siblings_its_neighbours_and_what_can_be_done(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    client = build_client(opened)
    held, behind = filled.messages["held"], filled.messages["behind"]

    page = (await client.get(f"/orders/messages/{held.id}")).text
    assert f"/orders/messages/{behind.id}" in page
    assert f'href="/orders/redrive?ids={held.id}"' in page
    assert f"pillarbox messages redrive {held.id}" in page
    waiting = (await client.get(f"/orders/messages/{behind.id}")).text
    assert "This message waits for" in waiting
    assert f"/orders/messages/{held.id}" in waiting
    assert "only what is failed, held or discarded can be redriven" in waiting
    sibling = (await client.get(f"/orders/messages/{filled.messages['cause'].id}")).text
    assert "The same message at other destinations" in sibling


async def test_failures_are_grouped_by_cause(opened: OpenStore, filled: Filled, build_client: Build) -> None:
    client = build_client(opened)

    groups = (await client.json("/orders/failures"))["failures"]
    assert [(one["destination"], one["count"]) for one in groups] == [("billing", 3), ("audit", 1)]
    query = f"destination=billing&fingerprint={quote(groups[0]['fingerprint'])}"
    group = await client.json(f"/orders/failures/group?{query}")
    assert len(group["messages"]) == 3


async def test_a_destination_says_who_paused_it_and_which_keys_are_blocked(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    client = build_client(opened)

    page = (await client.get("/orders/destinations/audit")).text
    assert "Paused by ann" in page
    assert "they are moving" in page
    document = await client.json("/orders/destinations/audit")
    (blocked,) = document["blocked_keys"]
    assert (blocked["key"], blocked["waiting"], blocked["head"]["id"]) == ("blocked", 2, filled.messages["held"].id)
    assert sum(len(one["lanes"]) for one in document["lanes"]) == 64


async def test_a_chain_is_a_tree_with_what_no_store_has_seen(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    client = build_client(opened)

    document = await client.json(f"/orders/chains?id={filled.correlation_id}")
    seen = {root["message_id"]: root for root in document["chain"]["roots"]}
    cause = seen[str(filled.messages["cause"].message_id)]
    assert [child["message_id"] for child in cause["children"]] == [str(filled.messages["caused"].message_id)]
    assert {hop["message"]["destination"] for hop in cause["hops"]} == {"billing", "mail"}
    assert "not seen by these stores" in (await client.get(f"/orders/chains?id={filled.correlation_id}")).text


async def test_activity_says_who_did_what_and_downloads_as_csv(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    client = build_client(opened)

    entries = (await client.json("/orders/activity?by=ann"))["journal"]
    assert ("paused", "audit", "they are moving token=***") in [
        (one["action"], one["destination"], one["reason"] or one["error"]) for one in entries
    ]
    table = await client.get("/orders/activity?format=csv&all=1")
    assert table.headers["content-type"] == "text/csv; charset=utf-8"
    assert "ann,discarded,mail" in table.text


async def test_an_empty_store_shows_the_lines_that_add_a_message(memory: OpenStore, build_client: Build) -> None:
    client = build_client(memory)

    assert "outbox.publish(session" in (await client.get("/orders/")).text
    assert "No message yet" in (await client.get("/orders/messages")).text
    assert "No message has failed" in (await client.get("/orders/failures")).text
    assert "No relay is alive" in (await client.get("/orders/relays")).text
    assert "No pending message matches" not in (await client.get("/orders/messages?state=failed")).text
    assert "No failed message matches" in (await client.get("/orders/messages?state=failed&topic=x")).text


async def test_the_states_of_the_tabs_are_all_states(memory: OpenStore, build_client: Build) -> None:
    page = (await build_client(memory).get("/orders/messages")).text

    for state in State:
        assert f"state={state.value}" in page


@pytest.mark.parametrize("role", list(Role))
async def test_a_role_sees_the_buttons_that_it_may_press(role: Role, memory: OpenStore, build_client: Build) -> None:
    from tests.support.dashboard.seed import fill

    filled = await fill(memory.store, memory.writer)
    client = build_client(memory, role=role)
    failed = filled.messages["failed"]

    page = (await client.get(f"/orders/messages/{failed.id}")).text
    assert (f'href="/orders/redrive?ids={failed.id}"' in page) == (role >= Role.OPERATOR)
    assert (f'href="/orders/discard?ids={failed.id}"' in page) == (role >= Role.OWNER)
    assert ("Show the payload" in page) == (role >= Role.READER)
