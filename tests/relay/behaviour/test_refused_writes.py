"""The database refuses a write for good: one message is closed with the reason, and every other one goes on."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from pillarbox.contracts.finding import Finding
from pillarbox.contracts.store import Claim, Fence, RelayInfo, Selection, Settlement
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import StoreRefused
from pillarbox.message import Message, State
from pillarbox.relay import destination
from pillarbox.retry import RetryPolicy
from pillarbox.stores.factory import open_store
from tests.support.mariadb_server import connected
from tests.support.relay_behaviour.scene import DELIVERED, Scene, Script, as_told, until

COLUMNS = (
    "destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject, "
    "correlation_id, causation_id, event_time, created_at, attempts, status_at"
)
OLDER = "00000000-0000-7000-8000-000000000000"
MANY = 40


async def run_sql(scene: Scene, sql: str) -> list[Any]:
    """Run statements on the scene's database, written with MySQL's quotes and the default names."""
    if scene.url.startswith("mysql"):
        return await asyncio.to_thread(_run_mariadb, scene, sql)
    if scene.url.startswith("sqlite"):
        with closing(sqlite3.connect(scene.url.removeprefix("sqlite:///"), timeout=30)) as database:
            return database.execute(sql).fetchall() if _reads(sql) else _run_script(database, sql)
    connection: Any = await asyncpg.connect(scene.url)
    try:
        await connection.execute(f'set search_path = "{scene.names.schema}"')
        return list(await connection.fetch(sql.replace("`", '"')))
    finally:
        await connection.close()


def _reads(sql: str) -> bool:
    return sql.startswith("select")


def _run_script(database: sqlite3.Connection, sql: str) -> list[Any]:
    database.execute(sql)
    database.commit()
    return []


def _run_mariadb(scene: Scene, sql: str) -> list[Any]:
    with closing(connected(scene.url, autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


async def refuse(scene: Scene, table: str, condition: str) -> None:
    """Let the database refuse every row of a table that meets a condition."""
    if scene.url.startswith("sqlite"):
        columns = condition.replace("payload", "new.payload").replace("waits", "new.waits")
        for event in ("insert", "update"):
            await run_sql(
                scene,
                f"create trigger refused_{event} before {event} on pillarbox_{table} when {columns} "
                "begin select raise(abort, 'refused by the test'); end",
            )
    else:
        await run_sql(scene, f"alter table pillarbox_{table} add constraint refused check (not ({condition}))")


async def allow(scene: Scene, table: str) -> None:
    """Take the refusal away."""
    if scene.url.startswith("sqlite"):
        for event in ("insert", "update"):
            await run_sql(scene, f"drop trigger refused_{event}")
    else:
        await run_sql(scene, f"alter table pillarbox_{table} drop constraint refused")


def is_number(scene: Scene, number: int) -> str:
    """A condition on the payload, in the dialect of the store."""
    if scene.url.startswith("postgresql"):
        return f"payload = '{number}'::bytea"
    return f"payload = x'{str(number).encode().hex()}'"


async def find_numbers(scene: Scene, *states: State) -> list[int]:
    return sorted(int(message.payload) for message in await scene.find(*states))


async def copy_into_history(scene: Scene, ids: Sequence[int]) -> None:
    """Write an older message under each of these ids, as a backup of the outbox alone brings them back."""
    for id_ in ids:
        older = f"{OLDER[:-4]}{id_:04}"
        await run_sql(
            scene,
            f"insert into pillarbox_history (id, message_id, {COLUMNS}, status) "
            f"select id, '{older}', {COLUMNS}, 'delivered' from pillarbox_outbox where id = {id_}",
        )


async def test_an_id_that_history_has_already_costs_no_other_message_anything(scene: Scene) -> None:
    """A restore took the sequence back. The older message stays, and the new one is delivered under another id."""
    sink = Script()
    await scene.put(*[(number, f"key-{number % 7}") for number in range(MANY)])
    ids = {int(message.payload): message.id for message in await scene.find()}
    taken = [ids[3], ids[4], ids[30]]
    await copy_into_history(scene, taken)
    async with scene.relay(sink) as relay:
        await until(scene.is_drained)
        relay_id = relay.relay_id
    assert sorted(sink.numbers()) == list(range(MANY)), "each was sent once"
    closed = [message for message in await scene.find() if not str(message.message_id).startswith(OLDER[:-4])]
    assert [message.state for message in closed] == [State.DELIVERED] * MANY
    moved = [message for message in closed if message.id not in ids.values()]
    assert sorted(int(message.payload) for message in moved) == [3, 4, 30]
    assert len({message.id for message in await scene.find()}) == MANY + 3, "the older ones are still there"
    assert relay.relay_id == relay_id


async def test_a_message_that_was_closed_under_another_id_can_be_sent_again(scene: Scene) -> None:
    """By a new id: the one that it has now is no counter's, and would take the counter with it."""
    await scene.put((1, "a"))
    (message,) = await scene.find()
    await copy_into_history(scene, [message.id])
    await scene.store.discard(Selection(message_ids=[message.message_id]), by="ann", reason="again", limit=10)
    (discarded,) = await scene.find(State.DISCARDED)
    assert discarded.id != message.id
    await scene.store.redrive(Selection(message_ids=[message.message_id]), by="ann", limit=10)
    (open_again,) = await scene.find(State.PENDING)
    assert message.id < open_again.id < 2**52
    await scene.put((2, "b"))
    assert max(one.id for one in await scene.find()) == open_again.id + 1


async def test_a_closed_message_is_replayed_beside_an_open_one_of_its_id(scene: Scene) -> None:
    sink = Script()
    await scene.put((1, "a"))
    (message,) = await scene.find()
    await copy_into_history(scene, [message.id])
    assert len(await scene.find()) == 2
    assert (await scene.store.replay(Selection(states=[State.DELIVERED]), by="ann", limit=10)).count == 1
    async with scene.relay(sink):
        await until(scene.is_drained)
    assert sink.numbers() == [1, 1]


async def find_behind(scene: Scene) -> list[Finding]:
    """What the doctor finds about the counter with the login of the tables' owner: others may not read a sequence."""
    store: Any = open_store(scene.store_url, names=scene.names, asks_only=True)
    await store.open()
    try:
        return [finding for finding in await store.inspect() if "ids-behind" in finding.code]
    finally:
        await store.close()


async def test_the_doctor_and_verify_see_a_counter_that_went_back(scene: Scene) -> None:
    await scene.put((1, "a"))
    (message,) = await scene.find()
    assert await find_behind(scene) == []
    assert await scene.schema().verify() == ()
    await copy_into_history(scene, [message.id])
    await run_sql(scene, f"update pillarbox_history set id = {message.id + 1_000}")
    (finding,) = await find_behind(scene)
    assert str(message.id + 1_000) in finding.what + finding.fix
    (difference,) = await scene.schema().verify()
    assert (difference.item, difference.found) == ("counter of ids", str(message.id))


@pytest.mark.parametrize("state", ["XX000", "45000"])
async def test_a_trigger_may_refuse_with_any_state(scene: Scene, state: str) -> None:
    """The one message that it refuses is set aside, and the others go on."""
    await refuse_by_trigger(scene, state)
    sink = Script()
    await scene.put(*[(number, f"key-{number % 4}") for number in range(10)])
    async with scene.relay(sink):
        await until(lambda: _are_delivered(scene, 9))
    assert sorted(sink.numbers()) == list(range(10))


async def refuse_by_trigger(scene: Scene, state: str) -> None:
    """Let a trigger of the history refuse the message 7 with an error state of its own."""
    if scene.url.startswith("postgresql"):
        await run_sql(
            scene,
            "create function refuse() returns trigger language plpgsql as "
            f"$$begin raise exception 'no' using errcode = '{state}'; end$$",
        )
        await run_sql(
            scene,
            f"create trigger refused before insert on pillarbox_history for each row when (new.{is_number(scene, 7)}) "
            "execute function refuse()",
        )
    elif scene.url.startswith("mysql"):
        state = "45000" if state == "XX000" else "HY000"
        await run_sql(
            scene,
            "create trigger refused before insert on pillarbox_history for each row "
            f"begin if new.{is_number(scene, 7)} then signal sqlstate '{state}' set message_text = 'no'; end if; end",
        )
    else:
        await refuse(scene, "history", is_number(scene, 7))


async def test_a_message_that_cannot_be_recorded_as_failed_closes_under_its_own_reason(scene: Scene) -> None:
    """It is rejected, and its id is in history already."""
    sink = Script(as_told({2: Outcome(False, "unroutable", rejected=True)}))
    await scene.put((1, "a"), (2, "a"), (3, "a"))
    ids = {int(message.payload): message.id for message in await scene.find()}
    await copy_into_history(scene, [ids[2]])
    async with scene.relay(sink):
        await until(scene.is_drained)
    (failed,) = await scene.find(State.FAILED)
    assert (failed.payload, failed.last_error) == (b"2", "unroutable")
    assert sink.numbers() == [1, 3]


async def test_a_retry_that_is_refused_closes_the_message(scene: Scene) -> None:
    """As a key that is too long for the index of waiting messages does."""
    sink = Script(as_told({5: Outcome(False, "not now")}))
    await refuse(scene, "outbox", f"waits is not null and {is_number(scene, 5)}")
    await scene.put(*[(number, f"key-{number % 4}") for number in range(MANY)])
    async with scene.relay(sink, retry=_never_give_up()):
        await until(scene.is_drained)
    assert await find_numbers(scene, State.FAILED) == [5]
    (failed,) = await scene.find(State.FAILED)
    assert "the store refused to record its outcome" in str(failed.last_error)
    assert "not now" in str(failed.last_error)
    assert sorted(sink.numbers()) == [number for number in range(MANY) if number != 5]


async def test_a_message_that_cannot_be_parked_is_closed_and_its_key_goes_on(scene: Scene) -> None:
    answers = iter([Outcome(False, "not now")])
    sink = Script(lambda message: next(answers, DELIVERED) if message.payload == b"1" else DELIVERED)
    await refuse(scene, "outbox", f"waits is not null and {is_number(scene, 2)}")
    await scene.put((0, None))
    async with scene.relay(sink, batch=1, window=1):
        await until(lambda: sink.numbers() == [0])
        await scene.put((1, "a"), (2, "a"), (3, "a"), (4, "b"))
        await until(scene.is_drained)
    assert await find_numbers(scene, State.DELIVERED) in ([0, 1, 2, 3, 4], [0, 1, 3, 4])
    assert sink.numbers("a") in ([1, 2, 3], [1, 3])


async def test_a_message_about_which_nothing_can_be_recorded_is_set_aside(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent once, the others are delivered, and it is closed when the refusal has gone."""
    monkeypatch.setattr(destination, "ASIDE_INTERVAL", 0.1)
    sink = Script()
    await refuse(scene, "history", is_number(scene, 7))
    await scene.put(*[(number, f"key-{number % 4}") for number in range(MANY)])
    async with scene.relay(sink):
        await until(lambda: _are_delivered(scene, MANY - 1))
        await scene.put((MANY, "key-3"))  # the key of the message that is set aside
        await until(lambda: _are_delivered(scene, MANY))
        assert [int(message.payload) for message in await scene.find(State.SENDING)] == [7]
        await allow(scene, "history")
        await until(scene.is_drained)
    assert sorted(sink.numbers()) == list(range(MANY + 1)), "each was sent once"
    # Failed, if the refusal went between the attempt to record its delivery and the attempt to close it.
    assert await find_numbers(scene, State.DELIVERED, State.FAILED) == list(range(MANY + 1))


async def _are_delivered(scene: Scene, count: int) -> bool:
    return len(await scene.find(State.DELIVERED)) == count


def _never_give_up() -> RetryPolicy:
    return RetryPolicy(attempts=None)


# --- the store's own answer ---


async def test_a_store_tells_a_refusal_from_an_outage(scene: Scene) -> None:
    await scene.put((1, "a"))
    (message,) = await scene.find()
    await refuse(scene, "history", is_number(scene, 1))
    fence = await _own(scene, message)
    await scene.store.claim(fence, Claim(1, [message.id]))
    with pytest.raises(StoreRefused):
        await scene.store.settle(fence, Settlement(delivered=[message.id], finished=[1]))
    assert [one.state for one in await scene.find()] == [State.SENDING], "nothing was written"


async def _own(scene: Scene, message: Message) -> Fence:
    lease = timedelta(minutes=1)
    info = RelayInfo(
        relay_id=uuid4(), service="s", host="h", pid=1, version="1", destinations=["sink"], reachable=["sink"]
    )
    await scene.store.register(info, lease=lease)
    ((lane,), _) = await scene.store.take(
        info.relay_id, "sink", partitions=[message.partition], lease=lease, claim_number=1_000
    )
    return Fence(info.relay_id, "sink", {lane.partition: lane.epoch})
