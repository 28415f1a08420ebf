"""Hand-off to Debezium: what the real engine makes of our rows, and what may be pruned when."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import psycopg
import pytest

from pillarbox import Outbox, context
from pillarbox.brokers.kafka.encoding import TOPIC_RULES, encode
from pillarbox.brokers.templates import compile_template
from pillarbox.cloudevents import KAFKA, from_message, read
from pillarbox.contracts.store import RelayInfo, Selection, Store
from pillarbox.message import Message, Names
from pillarbox.operations.store_access import run_on_store
from pillarbox.routes import Route
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.stores.urls import parse_store_url
from tests.support.cli.program import RunResult, pillarbox
from tests.support.debezium_engine import DebeziumEngine, Record, find_debezium
from tests.support.logical_postgres import execute, install_logical, read_slot
from tests.support.private_postgres import PrivatePostgres
from tests.support.servers import ServerMissing

T = TypeVar("T")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def server(private_postgres: Callable[[], PrivatePostgres]) -> PrivatePostgres:
    server = private_postgres()
    install_logical(server)
    return server


@pytest.fixture
def url(server: PrivatePostgres) -> str:
    return server.url


@pytest.fixture
def debezium() -> str:
    try:
        return find_debezium()
    except ServerMissing as reason:
        pytest.skip(f"No Debezium: {reason}; `make test-handoff` downloads it (200 MB) and runs this test")


class Shop:
    """Publishes to two destinations, and runs the program."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = folder
        (folder / "pillarbox.toml").write_text(
            f'[store]\nurl = "{url}"\n\n[destinations.kafka]\nhandoff = "debezium"\n\n'
            '[destinations.mail]\nurl = "memory:"\n'
        )
        self._outbox = Outbox(routes=[Route(to=["kafka", "mail"])], source="/shop")

    def publish(self, number: int, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        """Publish one message; every field that may be missing is missing in some."""
        headers = {"tenant": f"t {number}", "x-Mixed": "{}\"'"} if number % 2 else {}
        with context.trace(TRACE if number % 3 == 0 else None, "a=b" if number % 6 == 0 else None):
            self._outbox.publish(
                connection,
                b"" if number == 7 else f'{{"n": {number}, "text": "ä\\u0000"}}'.encode(),
                type="orders.placed", topic="orders" if number % 4 else "shop.orders",
                key=f"k\N{LATIN SMALL LETTER A WITH DIAERESIS}{number % 3}" if number % 5 else None,
                subject=f"order {number}" if number % 2 == 0 else None, headers=headers,
                content_type="application/json" if number % 2 else "application/octet-stream",
            )  # fmt: skip

    def publish_many(self, numbers: range) -> None:
        with psycopg.connect(self.url) as connection:
            for number in numbers:
                with connection.transaction():
                    self.publish(number, connection)

    def run(self, *arguments: str) -> RunResult:
        return pillarbox(*arguments, cwd=self._folder)

    def part(self, name: str, *more: str) -> str:
        ran = self.run("handoff", "debezium", "--destination", "kafka", "--part", name, *more)
        assert ran.code == 0, ran.err
        return ran.out

    def hand_off(self) -> None:
        execute(self.url, "create role debezium")
        execute(self.url, self.part("publication"))
        execute(self.url, self.part("grants"))

    def count(self, destination: str) -> int:
        rows = execute(self.url, "select count(*) from pillarbox_outbox where destination = %s", destination)
        count: int = rows[0][0]
        return count


@pytest.fixture
def shop(url: str, tmp_path: Path) -> Shop:
    return Shop(url, tmp_path)


def on_store(url: str, action: Callable[[PostgresStore], Awaitable[T]]) -> T:
    async def run(store: Store) -> T:
        assert isinstance(store, PostgresStore)
        return await action(store)

    return run_on_store(parse_store_url(url), run, names=Names())


# --- with Debezium ---


@pytest.fixture
def start(shop: Shop, tmp_path: Path, debezium: str) -> Iterator[Callable[[], DebeziumEngine]]:
    """Starts the printed connector. Only the password is ours, and its heartbeats are quicker."""
    engines: list[DebeziumEngine] = []

    def start_engine() -> DebeziumEngine:
        printed = json.loads(shop.part("config"))["config"]
        config = {**printed, "database.password": "any", "heartbeat.interval.ms": "300"}
        engines.append(DebeziumEngine(config, folder=tmp_path / "debezium", path=debezium))
        return engines[-1]

    yield start_engine
    for engine in engines:
        engine.close()


def test_debezium_delivers_what_our_transport_would_and_only_that_is_pruned(
    shop: Shop, start: Callable[[], DebeziumEngine]
) -> None:
    """Every record of the printed connector, run by its own role, is the one that our transport would have written."""
    shop.publish_many(range(12))
    shop.hand_off()
    engine = start()
    records = engine.read(12)
    shop.publish_many(range(12, 30))
    records += engine.read(18)

    messages = list_messages(shop.url)
    assert len({find_id(record) for record in records}) == 30
    check_records(records, messages)
    check_order(records, messages)

    pruned = shop.run("handoff", "prune", "--destination", "kafka", "--yes", "--by", "ann", "-o", "json")
    assert pruned.code == 0, pruned.err
    assert json.loads(pruned.out)["removed"] == 30
    assert (shop.count("kafka"), shop.count("mail")) == (0, 30)
    line = execute(shop.url, "select destination, by, detail from pillarbox_journal where action = 'purged'")[0]
    assert line[:2] == ("kafka", "ann")
    assert line[2].startswith("30 handed-off messages, confirmed by slot pillarbox_kafka at ")

    # A connector that hangs confirms nothing, however well its slot looks.
    engine.freeze()
    shop.publish_many(range(30, 33))
    refused = shop.run("handoff", "prune", "--destination", "kafka", "--yes", "--wait", "1s")
    assert (refused.code, shop.count("kafka")) == (1, 3)
    assert "has not confirmed" in refused.sentence
    engine.kill()
    await_inactive(shop.url)
    refused = shop.run("handoff", "prune", "--destination", "kafka", "--yes")
    assert (refused.code, shop.count("kafka")) == (1, 3)
    assert "Nobody reads the slot pillarbox_kafka" in refused.sentence

    # Its successor goes on where it was.
    again = start().read_until(lambda found: len({find_id(record) for record in found}) >= 3)
    check_records(again, list_messages(shop.url))
    assert shop.run("handoff", "prune", "--destination", "kafka", "--yes").code == 0
    assert shop.count("kafka") == 0


def test_a_lost_slot_costs_repeats_and_no_message(shop: Shop, start: Callable[[], DebeziumEngine]) -> None:
    """The rows are still there: what was not confirmed was not pruned, and the connector reads them again."""
    shop.hand_off()
    shop.publish_many(range(4))
    engine = start()
    engine.read(4)
    engine.kill()
    await_inactive(shop.url)
    execute(shop.url, "select pg_drop_replication_slot('pillarbox_kafka')")
    shop.publish_many(range(4, 8))

    found = start().read_until(lambda records: len({find_id(record) for record in records}) >= 8)

    check_records(found, list_messages(shop.url))


def list_messages(url: str) -> dict[str, Message]:
    """Return the messages of the destination, by the texts of their ids."""
    found = on_store(url, lambda store: store.find(Selection(destination="kafka"), limit=1_000))
    return {str(message.message_id): message for message in found}


def find_id(record: Record) -> str:
    text = dict(record.headers)["ce_id"]
    assert text is not None
    return text.decode()


def check_records(records: Sequence[Record], messages: dict[str, Message]) -> None:
    """Compare all that is in a record with what our transport writes, and what a consumer reads with the message."""
    template = compile_template("{topic}", option="topic", transport="kafka", rules=TOPIC_RULES)
    for record in records:
        message = messages[find_id(record)]
        ours = encode(message, topic=template, mode="binary")
        assert record.topic == ours.topic
        assert record.key == (None if ours.key is None else ours.key.encode())
        assert record.value == ours.value
        assert len(dict(record.headers)) == len(record.headers)
        theirs = {name: value.decode() for name, value in record.headers if value is not None}
        own = dict(ours.headers)
        # The one thing that an event router cannot do: take the map of headers apart.
        joined = theirs.pop("ce_pillarboxheaders", None)
        apart = {*message.headers, *(f"ce_{name}" for name in message.headers if name.startswith("trace"))}
        assert json.loads(joined or "{}") == dict(message.headers)
        assert theirs == {name: value for name, value in own.items() if name not in apart}
        received = {name: value or "" for name, value in record.headers}
        assert read(received, record.value or b"", binding=KAFKA) == from_message(message)


def check_order(records: Sequence[Record], messages: dict[str, Message]) -> None:
    ids = defaultdict(list)
    for record in records:
        if record.key is not None:
            ids[record.key].append(messages[find_id(record)].id)
    assert len(ids) == 3
    for found in ids.values():
        assert found == sorted(found)


def await_inactive(url: str) -> None:
    """The server needs a moment to notice that a reader is gone."""
    until = time.monotonic() + 30
    while execute(url, "select 1 from pg_replication_slots where active"):
        assert time.monotonic() < until, "the slot is still active"
        time.sleep(0.05)


# --- pruning, with the plainest reader of a slot ---


@pytest.fixture
def slot(shop: Shop) -> str:
    shop.hand_off()
    execute(shop.url, "select pg_create_logical_replication_slot('pillarbox_kafka', 'pgoutput')")
    return "pillarbox_kafka"


def test_what_the_slot_confirmed_is_pruned_and_nothing_else(shop: Shop, server: PrivatePostgres, slot: str) -> None:
    shop.publish_many(range(3))
    with psycopg.connect(shop.url) as late, read_slot(server, slot, publication=slot):
        shop.publish(3, late)  # written, and not committed: the slot has confirmed what came after it
        shop.publish_many(range(4, 6))
        pruned = shop.run("handoff", "prune", "--destination", "kafka", "--yes", "-o", "json")
        assert (pruned.code, json.loads(pruned.out)["removed"]) == (0, 5), pruned
        late.commit()
        assert shop.count("kafka") == 1
        assert shop.run("handoff", "prune", "--destination", "kafka", "--yes").code == 0
    assert (shop.count("kafka"), shop.count("mail")) == (0, 6)


def test_a_message_that_commits_after_the_mark_stays(shop: Shop) -> None:
    """Its transaction had begun, and its id is below others that go."""
    with psycopg.connect(shop.url) as late:
        shop.publish(0, late)
        shop.publish_many(range(1, 3))
        mark = on_store(shop.url, PostgresStore.mark_log)
        late.commit()
    shop.publish_many(range(3, 4))

    step = on_store(
        shop.url,
        lambda store: store.prune_handed_off("kafka", mark=mark, older_than=timedelta(0), after=0, limit=100),
    )

    assert (step.deleted, shop.count("kafka"), shop.count("mail")) == (2, 2, 4)


def test_pruning_goes_in_steps_and_leaves_what_is_young(shop: Shop) -> None:
    shop.publish_many(range(5))
    execute(shop.url, "update pillarbox_outbox set created_at = now() - interval '1 hour' where id <= 6")
    mark = on_store(shop.url, PostgresStore.mark_log)

    async def prune(store: PostgresStore) -> list[tuple[int, int | None]]:
        steps: list[tuple[int, int | None]] = []
        after: int | None = 0
        while after is not None:
            step = await store.prune_handed_off(
                "kafka", mark=mark, older_than=timedelta(minutes=30), after=after, limit=4
            )
            steps.append((step.deleted, step.last_id))
            after = step.last_id
        return steps

    assert on_store(shop.url, prune) == [(2, 4), (1, 8), (0, 10), (0, None)]
    assert (shop.count("kafka"), shop.count("mail")) == (2, 5)


def test_the_journal_of_a_message_at_another_destination_stays(shop: Shop) -> None:
    shop.publish_many(range(1))
    execute(
        shop.url,
        "insert into pillarbox_journal (message_id, destination, action, at, by) "
        "select message_id, destination, 'noted', now(), 'test' from pillarbox_outbox",
    )
    mark = on_store(shop.url, PostgresStore.mark_log)

    step = on_store(
        shop.url,
        lambda store: store.prune_handed_off("kafka", mark=mark, older_than=timedelta(0), after=0, limit=100),
    )

    assert step.deleted == 1
    assert execute(shop.url, "select destination from pillarbox_journal where action = 'noted'") == [("mail",)]


def test_without_its_slot_nothing_is_pruned_unless_forced(shop: Shop) -> None:
    shop.publish_many(range(2))
    execute(shop.url, "update pillarbox_outbox set created_at = now() - interval '1 hour' where id <= 2")

    refused = shop.run("handoff", "prune", "--destination", "kafka", "--yes")
    assert (refused.code, "There is no slot pillarbox_kafka" in refused.sentence) == (1, True)
    assert shop.run("handoff", "prune", "--destination", "kafka", "--yes", "--force").code == 2
    assert shop.run("handoff", "prune", "--destination", "kafka").code == 2  # nobody to ask
    assert shop.count("kafka") == 2
    assert (
        shop.run("handoff", "prune", "--destination", "kafka", "--older-than", "5m", "--dry-run", "--force").code == 0
    )
    assert shop.count("kafka") == 2
    forced = shop.run("handoff", "prune", "--destination", "kafka", "--yes", "--force", "--older-than", "5m")
    assert (forced.code, shop.count("kafka"), shop.count("mail")) == (0, 1, 2)
    detail = execute(shop.url, "select detail from pillarbox_journal where action = 'purged'")[0][0]
    assert detail == "1 handed-off messages, older than 5m, not confirmed by a slot"


def test_what_a_relay_serves_is_not_pruned(shop: Shop) -> None:
    shop.publish_many(range(1))
    relay = RelayInfo(
        relay_id=uuid4(), service="shop", host="here", pid=1, version="1", destinations=["kafka"], reachable=["kafka"]
    )
    on_store(shop.url, lambda store: store.register(relay, lease=timedelta(minutes=5)))

    refused = shop.run("handoff", "prune", "--destination", "kafka", "--yes", "--force", "--older-than", "1ms")

    assert (refused.code, shop.count("kafka")) == (1, 1)
    assert "A relay serves kafka (shop)" in refused.sentence


def test_what_is_not_handed_off_is_not_pruned(shop: Shop) -> None:
    refused = shop.run("handoff", "prune", "--destination", "mail", "--yes", "--force", "--older-than", "1ms")
    assert (refused.code, "is not handed off" in refused.sentence) == (2, True)


# --- the doctor ---


def find_codes(shop: Shop) -> dict[str, str]:
    report = json.loads(shop.run("doctor", "-o", "json").out)
    return {
        finding["code"]: finding["severity"]
        for one in report["examined"]
        for finding in one["findings"]
        if finding["code"].startswith("handoff.")
    }


def test_the_doctor_follows_a_hand_off(shop: Shop, server: PrivatePostgres) -> None:
    assert find_codes(shop) == {"handoff.publication-missing": "critical", "handoff.slot-missing": "critical"}
    execute(shop.url, "create publication pillarbox_kafka for table pillarbox_outbox with (publish = 'update')")
    assert set(find_codes(shop)) == {
        "handoff.publication-filter", "handoff.publication-without-inserts", "handoff.slot-missing",
    }  # fmt: skip
    execute(shop.url, "drop publication pillarbox_kafka")
    shop.hand_off()
    assert set(find_codes(shop)) == {"handoff.slot-missing"}
    execute(shop.url, "select pg_create_logical_replication_slot('pillarbox_kafka', 'pgoutput')")
    assert find_codes(shop) == {"handoff.slot-inactive": "critical", "handoff.log-unlimited": "info"}
    execute(shop.url, "alter system set max_slot_wal_keep_size = '1GB'")
    execute(shop.url, "select pg_reload_conf()")
    with read_slot(server, "pillarbox_kafka", publication="pillarbox_kafka"):
        until = time.monotonic() + 30
        while find_codes(shop):
            assert time.monotonic() < until, find_codes(shop)
    execute(shop.url, "alter system set wal_level = replica")
    execute(shop.url, "select pg_drop_replication_slot('pillarbox_kafka')")
    server.stop()
    server.start()
    assert set(find_codes(shop)) == {"handoff.slot-missing", "handoff.wal-level"}


def test_the_doctor_reports_a_message_that_should_wait(shop: Shop) -> None:
    outbox = Outbox(routes=[Route(to="kafka")], source="/shop")
    with psycopg.connect(shop.url) as connection:
        outbox.publish(connection, {"n": 1}, type="a", delay=timedelta(hours=1))
    assert "handoff.deferred-messages" in find_codes(shop)


# --- status ---


def test_a_handed_off_destination_alarms_nobody_until_it_is_not_pruned(shop: Shop) -> None:
    shop.publish_many(range(2))
    execute(shop.url, "delete from pillarbox_outbox where destination = 'mail'")
    execute(shop.url, "update pillarbox_outbox set created_at = now() - interval '20 hours'")
    status = json.loads(shop.run("status", "-o", "json").out)
    assert {alert["name"] for alert in status["alerts"]} == {"relays"}
    assert {one["name"]: one["handed_off_to"] for one in status["destinations"]} == {"kafka": "debezium", "mail": None}
    screen = shop.run("status").out
    assert next(line for line in screen.splitlines() if line.startswith("kafka")).rstrip().endswith("debezium")
    execute(shop.url, "update pillarbox_outbox set created_at = now() - interval '25 hours'")
    alerts = {alert["name"]: alert for alert in json.loads(shop.run("check", "-o", "json").out)["alerts"]}
    assert alerts["unpruned"]["severity"] == "warning"
    assert "pillarbox handoff prune --destination kafka" in alerts["unpruned"]["do"]


def test_a_relay_leaves_a_handed_off_destination_alone(shop: Shop) -> None:
    shop.publish_many(range(2))
    ran = shop.run("relay", "--once")
    assert ran.code == 0, ran.err
    assert (shop.count("kafka"), shop.count("mail")) == (2, 0)
    refused = shop.run("relay", "--once", "--to", "kafka")
    assert (refused.code, "would deliver everything twice" in refused.sentence) == (2, True)
