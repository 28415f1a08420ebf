"""Every page answers people and programs, on every store."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import quote, quote_plus

import pytest

from pillarbox.contracts.store import InboxCount, Selection, Tries
from pillarbox.contracts.writer import Accept, Fail
from pillarbox.dashboard import Role
from pillarbox.dashboard.formatting import MOST_SHOWN
from pillarbox.dashboard.sources import Sample
from pillarbox.message import Message, Names, State
from pillarbox.operations.monitor import Status
from pillarbox.stores.memory import MemoryStore
from pillarbox.testing.samples import sample
from tests.support.dashboard.client import Client
from tests.support.dashboard.seed import Filled, Relaying, fill, to_incoming
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


async def test_the_overview_has_one_line_per_destination_and_folds_its_alerts(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    page = (await build_client(opened).get("/orders/")).text

    for name in ("audit", "billing", "unserved", "invoices"):
        cell = rf'<td class="line-name[^>]*title="{name}"'
        (line,) = re.findall(rf'<tr class="line[^"]*"[^>]*>\s*{cell}.*?</tr>', page, re.DOTALL)
        assert line.count('class="chip') == 1
        assert (f'action="/orders/destinations/{name}/resume"' in line) == (name == "audit")
        assert ("Redrive…</a>" in line) == (name in ("audit", "billing"))
        assert ('href="/orders/inbox?consumer=invoices"' in line) == (name == "invoices")
    assert page.index('title="audit"') < page.index('title="billing"')  # it is paused, and messages of it failed
    fold = page[page.index('<details class="fold"') : page.index("</details>", page.index('<details class="fold"'))]
    assert fold.count("<li class=") == fold.count("<b>") == len(re.findall('<tr class="line line-', page))
    assert "<details open" not in page


async def test_the_badge_of_a_page_counts_what_that_page_lists(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    client = build_client(opened)

    page = (await client.get("/orders/")).text
    pulse = (await client.get("/orders/pulse")).json()

    groups = (await client.json("/orders/failures"))["failures"]
    assert pulse["failed_text"] == str(sum(group["count"] for group in groups)) == "4"
    assert pulse["inbox_text"] == str(len((await client.json("/orders/inbox"))["failures"])) == "1"
    assert '<span class="badge" id="failed-badge">4</span>' in page
    assert '<span class="badge" id="inbox-badge" title="could not be handled">1</span>' in page


def test_a_badge_says_if_counting_stopped_at_a_limit() -> None:
    now = datetime.now(UTC)
    inboxes = [InboxCount(consumer="billing", failed=1_000, oldest_at=now, more=True)]
    status = Status(at=now, destinations=[], relays=[], stuck=[], near_failure=[], inboxes=inboxes)

    assert Sample(status=status).inbox_text == "1,000+"
    assert Sample(status=status).failed_text == Sample(status=None).inbox_text == ""


async def test_very_many_destinations_leave_the_overview_small(memory: OpenStore, build_client: Build) -> None:
    await memory.writer.insert([sample(destination=f"shop-{number}") for number in range(130)])
    client = build_client(memory)

    page = (await client.get("/orders/")).text

    assert len(re.findall('<tr class="line ', page)) == len(re.findall('<li class="alert ', page)) == 100
    assert "30 more need less: <a" in page
    assert '30 more need less: <a href="?format=json">JSON</a> has all of them.' in page
    assert len((await client.json("/orders/"))["alerts"]) == 130


async def test_no_page_has_a_banner_and_every_page_has_the_count(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    client = build_client(opened)

    pulse = (await client.get("/orders/pulse")).json()
    assert (pulse["attention"], pulse["severity"]) == (4, "critical")
    for path in ("", "messages", "system"):
        page = (await client.get(f"/orders/{path}")).text
        assert 'class="strip' not in page
        assert page.count('<span class="badge badge-critical" data-attention title="need attention">4</span>') == 2


async def test_a_viewer_sees_no_button_that_changes_something(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    page = (await build_client(opened, role=Role.VIEWER).get("/orders/")).text

    assert "See failures" in page
    assert "Resume" not in page
    assert "Redrive" not in page


async def test_chains_open_with_the_latest_and_the_slowest(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    client = build_client(opened)

    document = await client.json("/orders/chains")
    (chain,) = [one for one in document["latest"] if one["correlation_id"] == filled.correlation_id]
    assert (chain["messages"], chain["is_stopped"], chain["stores"]) == (3, False, ["orders"])
    starts = [one["start"] for one in document["latest"]]
    assert starts == sorted(starts, reverse=True)
    lengths = [datetime.fromisoformat(one["end"]) - datetime.fromisoformat(one["start"]) for one in document["slowest"]]
    assert lengths == sorted(lengths, reverse=True)
    assert len(document["slowest"]) == len(document["latest"]) <= 10
    page = (await client.get("/orders/chains")).text
    assert f'href="/orders/chains?id={filled.correlation_id}"' in page
    assert page.index("<h2>Slowest") < page.index("<h2>Latest")


async def test_relays_have_names_wherever_they_are_mentioned(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    client = build_client(opened)
    (relay,) = (await client.json("/orders/relays"))["relays"]
    gone = "01900000-0000-7000-8000-00000000dead"
    for by, action in ((relay["relay_id"], "outage"), (gone, "recovered"), (relay["relay_id"], "took_over")):
        await opened.store.note(action, by=by, detail=f"3 lanes of relay {gone}", destination="billing")

    for path in ("relays", "activity", "destinations/billing"):
        page = (await client.get(f"/orders/{path}")).text
        assert ">shop@web-1:4711<" in page.replace("<b>", "").replace("</b>", "") or "shop@web-1:4711: " in page, path
        assert "relay 01900000…" in page, path
        shown = re.sub(r'title="[^"]*"', "", page)
        assert gone not in shown, path
        assert relay["relay_id"] not in shown, path
    for name in ("held", "failed", "sending"):
        page = (await client.get(f"/orders/messages/{filled.messages[name].id}")).text
        assert relay["relay_id"] not in re.sub(r'title="[^"]*"', "", page), name


async def test_groups_of_failures_have_their_actions_in_the_list(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    (billing, _) = (await build_client(opened).json("/orders/failures"))["failures"]
    query = f"state=failed&destination=billing&fingerprint={quote_plus(billing['fingerprint'])}"

    for role, verbs in ((Role.OWNER, ["redrive", "discard"]), (Role.OPERATOR, ["redrive"]), (Role.VIEWER, [])):
        client = build_client(opened, role=role)
        page = html.unescape((await client.get("/orders/failures")).text)
        assert [verb for verb in ("redrive", "discard") if f'href="/orders/{verb}?{query}"' in page] == verbs
    assert "Redrive…" not in (await build_client(opened, read_only=True).get("/orders/failures")).text
    asked = await build_client(opened).json(f"/orders/discard?{query}")
    assert asked["matched"] == billing["count"] == 3


async def test_filters_are_menus_where_the_values_are_known(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    client = build_client(opened)

    for path in ("messages?destination=audit", "failures?destination=audit", "activity?destination=audit"):
        page = (await client.get(f"/orders/{path}")).text
        menu = page[page.index('<select name="destination">') :].partition("</select>")[0]
        assert '<option value="audit" selected>' in menu, path
        assert '<option value="billing">' in menu, path
    page = (await client.get("/orders/messages?state=failed&destination=gone")).text
    assert '<option value="gone" selected>' in page
    assert '<option value="failed" selected>' in page
    assert f'<option value="{filled.messages["failed"].topic}">' in page
    other = await client.json("/orders/messages?state=failed&phase=parked")
    assert {one["state"] for one in other["messages"]} == {"failed"}


async def test_a_bare_word_is_looked_for_in_errors_too(opened: OpenStore, filled: Filled, build_client: Build) -> None:
    client = build_client(opened)

    async def find(text: str) -> str:
        return (await client.get(f"/orders/search?q={quote(text)}")).headers["location"]

    assert await find("no account") == "/orders/messages?error=no+account"
    assert await find("503 dest:billing") == "/orders/messages?destination=billing&error=503"
    assert await find("503 dest:mail") == "/orders/messages?destination=mail&key=503"
    assert await find("nowhere-at-all") == "/orders/messages?key=nowhere-at-all"
    page = html.unescape((await client.get("/orders/messages?state=failed&key=nowhere-at-all")).text)
    assert 'href="?state=failed&error=nowhere-at-all"' in page


async def test_a_page_of_a_message_has_its_command(opened: OpenStore, filled: Filled, build_client: Build) -> None:
    failed = filled.messages["failed"]

    page = (await build_client(opened).get(f"/orders/messages/{failed.id}")).text
    assert f'data-copy="pillarbox messages show {failed.id}"' in page


async def test_charts_have_bands_of_the_destination_that_they_are_about(
    opened: OpenStore, filled: Filled, build_client: Build
) -> None:
    client = build_client(opened)

    every, audit, mail = [
        await client.json(f"/orders/charts{query}") for query in ("", "?destination=audit", "?destination=mail")
    ]
    assert (every["destination"], audit["destination"]) == (None, "audit")
    assert [(one["destination"], one["kind"]) for one in every["bands"]] == [("audit", "pause")]
    assert every["bands"] == audit["bands"]
    assert mail["bands"] == []
    assert set(mail["backlog"]) == {"mail"}
    assert every["delivered"][:-2] == [None] * 58


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
    assert await list_ids("phase=retry") == [filled.messages["retried"].id]
    assert await list_ids("phase=later") == []
    assert await list_ids("phase=held") == [filled.messages["held"].id]
    due = await list_ids("phase=due")
    # Their time has come, whatever they wait for: as the status counts them.
    assert {filled.messages[name].id for name in ("waiting", "behind", "retried")} <= set(due)
    assert not {filled.messages[name].id for name in ("held", "sending")} & set(due)
    status = await client.json("/orders/")
    assert sum(one["due"] for one in status["destinations"]) == len(due)
    page = (await client.get("/orders/messages?state=pending")).text
    assert 'parked <span class="tab-count">2</span>' in page
    assert 'retry <span class="tab-count">1</span>' in page
    assert f'due <span class="tab-count">{len(due)}</span>' in page
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


async def test_a_payload_that_is_nested_deep_is_shown_as_text(memory: OpenStore, build_client: Build) -> None:
    payload = b'{"a":' * 20_000 + b"1" + b"}" * 20_000
    await memory.writer.insert([sample(payload=payload)])
    client = build_client(memory)

    page = await client.get("/orders/messages/1/payload")
    assert page.status_code == 200
    assert "{&#34;a&#34;:{&#34;a&#34;:" in page.text
    (found,) = (await client.json("/orders/messages/1/payload"))["messages"]
    assert base64.b64decode(found["payload_base64"]) == payload


async def test_the_page_says_that_a_large_payload_is_cut(memory: OpenStore, build_client: Build) -> None:
    await memory.writer.insert([sample(payload=b'"' + b"x" * MOST_SHOWN + b'"'), sample(payload=b'"whole"')])
    client = build_client(memory)

    cut, whole = [(await client.get(f"/orders/messages/{n}/payload")).text for n in (1, 2)]
    assert "The page shows the first 256 KiB" in cut
    assert len(cut) < MOST_SHOWN + 20_000
    assert "The page shows the first" not in whole


async def test_a_large_payload_is_in_base64_in_documents(memory: OpenStore, build_client: Build) -> None:
    large = sample(payload=b'["' + b"x" * MOST_SHOWN + b'"]')
    await memory.writer.insert([large, sample(payload=b'["small"]')])
    await memory.writer.execute(
        Fail(names=Names(), consumer="invoices", source="/shop", message_id="1", attempts=1, error="no",
             message=to_incoming(large))
    )  # fmt: skip
    client = build_client(memory)

    (message,) = (await client.json("/orders/messages/1/payload"))["messages"]
    (failure,) = (await client.json("/orders/inbox/payload?consumer=invoices&source=/shop&message_id=1"))["failures"]
    for one in (message, failure):
        assert "payload" not in one
        assert base64.b64decode(one["payload_base64"]) == large.payload
    (small,) = (await client.json("/orders/messages/2/payload"))["messages"]
    assert small["payload"] == ["small"]


async def test_a_static_file_that_is_missing_is_not_found(memory: OpenStore, build_client: Build) -> None:
    client = build_client(memory)

    assert (await client.get("/-/static/dashboard.css")).status_code == 200
    for path in ("nothing.js", "../app.py", "%2e%2e/app.py", "vendor", ""):
        answer = await client.get(f"/-/static/{path}")
        assert answer.status_code == 404, path
        assert "Traceback" not in answer.text
    assert (await client.post("/-/static/dashboard.css", {})).status_code == 405


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

    first = (await client.get("/orders/")).text
    assert "outbox.publish(session" in first
    assert "pillarbox relay --to billing=" in first
    assert "Until then this needs attention: no relay is alive." in first  # what the badge counts
    assert "data-reload" in first
    await Relaying(memory.store, "billing", service="shop-relay").start()
    client = build_client(memory)
    second = (await client.get("/orders/")).text
    assert "<b>A relay runs:</b> shop-relay" in second
    assert "needs attention:" not in second
    await memory.writer.insert([sample()])
    assert "First steps" not in (await build_client(memory).get("/orders/")).text


async def test_other_pages_of_an_empty_store_say_what_is_empty(memory: OpenStore, build_client: Build) -> None:
    client = build_client(memory)

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


async def test_an_inbox_that_no_consumer_has_used_says_so(memory: OpenStore, build_client: Build) -> None:
    page = (await build_client(memory).get("/orders/inbox")).text
    assert "No consumer has run on this store" in page
    assert "handled everything" not in page
    accepted = Accept(names=Names(), consumer="billing", source="/shop", message_id="m")
    await memory.writer.execute(accepted)
    assert "Consumers handled everything" in (await build_client(memory).get("/orders/inbox")).text


async def test_tries_stand_beside_attempts(opened: OpenStore, filled: Filled, build_client: Build) -> None:
    client = build_client(opened)
    retried, failed = filled.messages["retried"], filled.messages["failed"]

    (row,) = [one for one in (await client.json("/orders/messages?phase=retry"))["messages"] if one["id"] == retried.id]
    assert (row["attempts"], row["tries"]["count"]) == (2, 1)
    page = (await client.get("/orders/messages?phase=retry")).text
    assert 'title="tried 1 time, the first at ' in page
    assert re.search(r"2 attempts, 1 try, the first <time", (await client.get(f"/orders/messages/{retried.id}")).text)
    (shown,) = (await client.json(f"/orders/messages/{retried.id}"))["messages"]
    assert shown["tries"] == row["tries"]
    groups = (await client.json("/orders/failures"))["failures"]
    assert [(one["attempts"], one["tries"]["count"]) for one in groups] == [(5, 1), (2, 1)]
    query = f"destination=billing&fingerprint={quote(groups[0]['fingerprint'])}"
    group = (await client.json(f"/orders/failures/group?{query}"))["messages"]
    assert {one["id"]: one["tries"]["count"] for one in group}[failed.id] == 1
    asked = (await client.json(f"/orders/redrive?ids={failed.id}"))["examples"]
    assert [one["tries"]["count"] for one in asked] == [1]


async def test_the_tries_of_a_page_are_one_question(
    memory: OpenStore, build_client: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(memory.store, memory.writer, many=30)
    client = build_client(memory)
    asked: list[int] = []
    count_tries = MemoryStore.count_tries

    async def count(store: MemoryStore, messages: Sequence[Message]) -> Mapping[int, Tries]:
        asked.append(len(messages))
        return await count_tries(store, messages)

    await client.get("/orders/messages?state=failed")
    monkeypatch.setattr(MemoryStore, "count_tries", count)
    await client.get("/orders/messages?state=failed")
    # The number in the sidebar is renewed now and then, which asks for the example of a cause alone.
    assert [count for count in asked if count > 1] == [31]


ODD = ("%00", "%ed%a0%80", "%ff", "9223372036854775808", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z",
       "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00%2B12:00", "99999999999999d")  # fmt: skip
ASKED = {
    "messages": ("destination", "key", "error", "fingerprint", "since", "until", "ids", "before", "newer"),
    "redrive": ("destination", "key", "since", "until"), "defer": ("until",), "charts": ("destination",),
    "search": ("q",), "activity": ("by", "action", "destination", "before"), "inbox": ("consumer", "error", "handled"),
    "chains": ("id",),
}  # fmt: skip


async def test_what_nobody_can_look_for_is_a_sentence(filled: Filled, opened: OpenStore, build_client: Build) -> None:
    client, broken = build_client(opened), []
    for page, names in ASKED.items():
        for path in (f"/orders/{page}?{name}={value}" for name in names for value in ODD):
            status = (await client.get(path, accept="application/json")).status_code
            if status >= 500:
                broken.append((status, path))

    assert not broken
