"""Rows of the relays' own tables that no relay wrote: each counts for nothing, and stops nobody."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import uuid4

from pillarbox.contracts.store import InboxSelection, Selection
from pillarbox.message import State
from pillarbox.operations.monitor import Monitor
from tests.relay.behaviour.test_refused_writes import run_sql
from tests.support.relay_behaviour.scene import Scene, Script, until

COUNT = 30
DEAD = "00000000-0000-4000-8000-00000000000d"


async def spoil_tables(scene: Scene) -> None:
    """Write odd rows into every table but the outbox, as far as its types allow them."""
    for statement in _list_statements(scene):
        await run_sql(scene, statement)


def _list_statements(scene: Scene) -> list[str]:
    ids: tuple[str, ...]
    if scene.url.startswith("postgresql"):
        now, soon, odd_time = "now()", "now() + interval '5 seconds'", "'infinity'"
        texts, odd_texts = "'{sink}'", ("'{NULL}'", "'{{a},{b}}'", "'{}'")
        ids = ("'{NULL}'", "'{{-1},{-2}}'", "'{-1,99999}'")
        relay_ids, message_ids = [f"'{uuid4()}'" for _ in odd_texts], [f"'{uuid4()}'"]
    else:
        is_sqlite = scene.url.startswith("sqlite")
        now = f"({'unixepoch()' if is_sqlite else 'unix_timestamp()'} * 1000000)"
        soon, odd_time = f"{now} + 5000000", "9223372036854775807"
        texts, odd_texts = "'[\"sink\"]'", ("'{\"a\": 1}'", "'[1]'", "'7'")
        ids = ("'[null]'", "'{}'", "'[\"x\", -1]'", *(["'[1'"] if is_sqlite else []))
        relay_ids, message_ids = ["'abc'", f"'{uuid4()}'", "''"], ["'abc'", "''"]
    relay = "relay_id, service, host, pid, version, destinations, reachable, started_at, expires_at, labels"
    odd_labels = ("'7'", '\'{"a": {"b": 1}, "": "", "c": null}\'', "'[]'")
    closed = (
        "message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, "
        "correlation_id, event_time, created_at, attempts, status_at"
    )
    statements = [
        f"insert into pillarbox_relay ({relay}) values ({id_}, 's', 'h', 1, 'v', {odd}, {texts}, {odd_time}, {soon}, "
        f"{labels})"
        for id_, odd, labels in zip(relay_ids, odd_texts, odd_labels, strict=True)
    ]
    statements += [
        "insert into pillarbox_claim (relay_id, number, message_ids, strikes, claimed_at) "
        f"values ('{DEAD}', {number}, {claimed}, {strikes}, {now})"
        for number, (claimed, strikes) in enumerate(zip(ids, (0, -5, 2**31 - 1, 0), strict=False))
    ]
    statements += [
        "insert into pillarbox_lane (destination, `partition`, relay_id, epoch) "
        f"values ('sink', {partition}, '{DEAD}', {epoch})"
        for partition, epoch in ((0, 2**63 - 1), (1, -(2**63) + 1), (2, 5))
    ]
    for number, message_id in enumerate(message_ids):
        values = f"{message_id}, '', 999, 'odd', '', '', '', '', '', '[1]', '', '', {odd_time}, {now}, -7, {now}"
        statements += [
            f"insert into pillarbox_history (id, status, {closed}) values ({10**6 + number}, 'delivered', {values})",
            f"insert into pillarbox_history (id, status, {closed}) values ({10**7 + number}, 'failed', {values})",
            "insert into pillarbox_journal (message_id, destination, action, at, `by`, attempt) "
            f"values ({message_id}, '', 'odd', {odd_time}, '', -1)",
        ]
    return [
        *statements,
        "insert into pillarbox_destination (destination, paused_by, paused_at, reason) "
        f"values ('x', '', {odd_time}, '')",
        "insert into pillarbox_inbox (consumer, source, message_id, status, attempts, message, status_at) "
        f"values ('', '', '', 'failed', -1, null, {odd_time})",
    ]


async def test_odd_rows_of_other_tables_stop_no_relay_and_no_answer(scene: Scene) -> None:
    sink = Script()
    await spoil_tables(scene)
    await scene.put(*[(number, f"key-{number}") for number in range(COUNT)])
    store: Any = scene.store

    pending = await scene.find(State.PENDING)
    assert len(pending) == COUNT, "a claim of nothing hides nothing"
    async with asyncio.timeout(60), scene.relay(sink) as relay:
        await until(lambda: len(sink.numbers()) > 0)
        relay_id = relay.relay_id
        await until(lambda: len(sink.numbers()) == COUNT)
        await until(scene.is_drained)
        assert relay.relay_id == relay_id
    assert sorted(sink.numbers()) == list(range(COUNT))

    await scene.find()
    await store.count(Selection())
    await store.counts()
    await store.oldest_due()
    await store.rollups(window=timedelta(hours=1))
    await store.claims(older_than=timedelta(0))
    await store.journal()
    await store.pauses()
    await store.inbox_failures(InboxSelection(), limit=10)
    await store.registry(lease=timedelta(minutes=1))
    await store.inspect()
    await Monitor(store).status()
    assert (await store.discard(Selection(states=[State.FAILED]), by="ann", reason="odd", limit=100)).count > 0
    await store.forget(stale_after=timedelta(0))
    await store.redrive_inbox(InboxSelection(), by="ann", limit=10)
