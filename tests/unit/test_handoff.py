"""What a hand-off prints, without a server: names, topics, filters; and the findings of one that is not well."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pillarbox.cloudevents import HTTP, KAFKA, read
from pillarbox.config import Config
from pillarbox.contracts.handoff import HandoffMark, PruneStep, ServerLog, SlotStatus
from pillarbox.contracts.store import Registry
from pillarbox.errors import ConfigError, DecodeError, HandoffRefused
from pillarbox.message import Names
from pillarbox.operations.handoff import HandoffPruner
from pillarbox.relay.configuration import list_handed_off, list_served_destinations
from pillarbox.relay.settings import DestinationSettings, build_publication_name, build_slot_name
from pillarbox.stores.postgres.handoff import (
    DebeziumPlan,
    HandoffFacts,
    build_connector,
    build_findings,
    build_grants,
    build_publication,
)
from pillarbox.testing.samples import sample_relay
from tests.support.cli.program import pillarbox

SERVER = ServerLog(version=17, level="logical", schema="public", database="shop")
SLOT = SlotStatus(name="pillarbox_kafka", is_active=True, confirmed=1)
EVENT = {"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/s", "ce_type": "t"}


def plan(topic: str = "{topic}") -> DebeziumPlan:
    return DebeziumPlan(
        destination="kafka", names=Names("mail", "box_"), schema="mail", connector="c", slot="s", publication="p",
        role='de"b', topic=topic,
    )  # fmt: skip


def config_of(topic: str) -> dict[str, str]:
    config = build_connector(plan(topic))["config"]
    assert isinstance(config, dict)
    return config


def test_a_topic_is_made_of_one_field() -> None:
    router = "transforms.outbox.route"
    for template, field, replacement in (
        ("{topic}", "topic", "${routedByValue}"),
        ("shop.{type}-v1", "type", "shop.${routedByValue}-v1"),
        ("orders", "topic", "orders"),
    ):
        config = config_of(template)
        assert (config[f"{router}.by.field"], config[f"{router}.topic.replacement"]) == (field, replacement)


@pytest.mark.parametrize("template", ["{topic}.{type}", "{key}", "{", "a b", "$1{topic}", "{topic}\n"])
def test_another_topic_is_refused(template: str) -> None:
    with pytest.raises(ConfigError, match="cannot be handed off"):
        build_connector(plan(template))


def test_names_are_quoted() -> None:
    assert 'for table "mail"."box_outbox"' in build_publication(plan())
    assert 'to "de""b";' in build_grants(plan())
    config = config_of("{topic}")
    assert config["table.include.list"] == r"mail\.box_outbox"
    assert 'from "mail"."box_outbox" where destination = ' in config[
        "snapshot.select.statement.overrides.mail.box_outbox"
    ]  # fmt: skip


def test_the_program_prints_no_secret_and_asks_nobody_when_it_is_offline(tmp_path: Path) -> None:
    (tmp_path / "pillarbox.toml").write_text(
        '[store]\nurl = "postgresql://app:s3cret@db.example:6432/shop"\nschema = "mail"\n\n'
        '[destinations."kafka.eu"]\nurl = "kafka://broker?topic=eu.{topic}"\n\n[destinations.x]\nurl = "memory:"\n'
    )
    arguments = ("handoff", "debezium", "--destination", "kafka.eu", "--offline")
    ran = pillarbox(*arguments, "-o", "json", cwd=tmp_path)
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert list(document) == ["config", "publication", "grants", "prune"]
    config = document["config"]["config"]
    assert (config["database.hostname"], config["database.port"], config["database.dbname"]) == (
        "db.example", "6432", "shop",
    )  # fmt: skip
    assert config["slot.name"] == "pillarbox_kafka_eu"
    assert config["transforms.outbox.route.topic.replacement"] == "eu.${routedByValue}"
    assert "s3cret" not in ran.out + ran.err + pillarbox(*arguments, cwd=tmp_path).out
    part = pillarbox(*arguments, "--part", "config", cwd=tmp_path)
    assert json.loads(part.out) == document["config"]
    for wrong in (("--slot", "A-b"), ("--topic", "{key}"), ("--role", ""), ("--destination", "y")):
        refused = pillarbox(*arguments, *wrong, cwd=tmp_path)
        assert refused.code == 2, wrong
        assert refused.sentence


@pytest.mark.parametrize("store", ["sqlite:///a.db", "mysql://app@db/shop"])
def test_only_postgresql_is_handed_off(store: str) -> None:
    for command in ("debezium", "prune"):
        ran = pillarbox("handoff", command, "--destination", "kafka", "--store", store)
        assert (ran.code, "cannot be handed off" in ran.sentence) == (2, True)


def test_settings_name_slot_and_publication() -> None:
    assert build_slot_name(DestinationSettings(name="Kafka-EU.1")) == "pillarbox_kafka_eu_1"
    assert build_publication_name(DestinationSettings(handoff_slot="s")) == "s"
    assert build_publication_name(DestinationSettings(handoff_slot="s", handoff_publication="p")) == "p"
    assert len(build_slot_name(DestinationSettings(name="x" * 100))) == 63
    with pytest.raises(ConfigError, match="handoff_slot"):
        DestinationSettings(handoff_slot="No")


def read_config(text: str, tmp_path: Path) -> Config:
    (tmp_path / "a.toml").write_text(text)
    return Config.load(tmp_path / "a.toml", environ={})


def test_relays_leave_it_alone(tmp_path: Path) -> None:
    config = read_config('[destinations.a]\nhandoff = "debezium"\n[destinations.b]\nurl = "memory:"\n', tmp_path)
    assert [one.name for one in list_served_destinations(config)] == ["b"]
    assert [one.name for one in list_handed_off(config)] == ["a"]


def test_no_dead_letter_leads_there(tmp_path: Path) -> None:
    """It would be an update, which the connector does not see."""
    text = '[destinations.a]\nhandoff = "debezium"\n[destinations.b]\nurl = "memory:"\ndead_letter = "a"\n'
    with pytest.raises(ConfigError, match="never be seen"):
        list_served_destinations(read_config(text, tmp_path))


def facts(slot: SlotStatus | None = SLOT, **changed: object) -> HandoffFacts:
    values: dict[str, object] = {
        "server": SERVER, "keep_limit": "1GB", "publishes_inserts": True, "has_table": True,
        "row_filter": "(destination = 'kafka'::text)", **changed,
    }  # fmt: skip
    return HandoffFacts(destination="kafka", slot_name="pillarbox_kafka", publication="p", slot=slot, **values)  # type: ignore[arg-type]


def slot(**changed: object) -> SlotStatus:
    values: dict[str, object] = {"name": "pillarbox_kafka", "is_active": True, "confirmed": 1, **changed}
    return SlotStatus(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "codes"),
    [
        (facts(), []),
        (facts(server=ServerLog(version=14, level="replica", schema="public", database="x")),
         ["handoff.old-server", "handoff.wal-level"]),
        (facts(row_filter="(destination = 'mail'::text)"), ["handoff.publication-filter"]),
        (facts(row_filter="((destination = 'kafka'::text) OR (destination = 'mail'::text))"),
         ["handoff.publication-filter"]),
        (facts(has_table=False), ["handoff.publication-missing"]),
        (facts(slot(wal_status="lost")), ["handoff.slot-lost"]),
        (facts(slot(wal_status="unreserved", safe_bytes=-1)), ["handoff.slot-unreserved"]),
        (facts(slot(kept_bytes=2**31)), ["handoff.slot-lags"]),
        (facts(slot(has_failover=False)), []),
        (facts(slot(has_failover=False), standbys=1), ["handoff.slot-without-failover"]),
        (facts(slot(has_failover=True), standbys=1), []),
        (facts(idle_slots={"other": 2**31, "small": 5, "pillarbox_kafka": 2**31}), ["handoff.idle-slots"]),
    ],
)  # fmt: skip
def test_findings(state: HandoffFacts, codes: list[str]) -> None:
    assert [finding.code for finding in build_findings(state)] == codes


def test_joined_headers_are_split_where_debezium_writes_them() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    joined = json.dumps({"tenant": "a", "traceparent": trace, "authorization": "b", "bad": "x\x00"})
    event = read({**EVENT, "ce_pillarboxheaders": joined, "tenant": "own"}, b"", binding=KAFKA)
    assert event.headers == {"tenant": "own", "traceparent": trace}
    assert event.extensions == {}
    # Over HTTP nobody writes them, and a signature would not cover them.
    web = {name.replace("_", "-"): value for name, value in EVENT.items()}
    event = read({**web, "ce-pillarboxheaders": '{"tenant":"a"}'}, b"", binding=HTTP)
    assert event.headers == {}


@pytest.mark.parametrize("text", ["[1]", "{", '{"a": 1}', '{"a": {"b": "c"}}', "[" * 100_000])
def test_joined_headers_that_are_none_are_a_decode_error(text: str) -> None:
    with pytest.raises(DecodeError, match="pillarboxheaders"):
        read({**EVENT, "ce_pillarboxheaders": text}, b"", binding=KAFKA)


class Log:
    """Store of a hand-off whose slot has confirmed everything, beside the relays that it knows."""

    def __init__(self, *serving: str, slot: SlotStatus | None = SLOT) -> None:
        self.pruned: list[str] = []
        self._slot = slot
        self._relays = [replace(sample_relay(), service="shop", destinations=[name]) for name in serving]

    async def registry(self, *, lease: timedelta) -> Registry:
        return Registry(now=datetime.now(UTC), relays=self._relays, owners={})

    async def slot(self, name: str) -> SlotStatus | None:
        return self._slot

    async def mark_log(self) -> HandoffMark:
        return HandoffMark(position=1, snapshot="1:1:")

    async def prune_handed_off(self, destination: str, **_: object) -> PruneStep:
        self.pruned.append(destination)
        return PruneStep(deleted=0, last_id=None)


@pytest.mark.parametrize("is_forced", [True, False])
async def test_what_a_relay_serves_is_not_pruned_with_or_without_asking_the_slot(is_forced: bool) -> None:
    async def prune(log: Any) -> None:
        pruner = HandoffPruner(log, "kafka", slot="pillarbox_kafka", lease=timedelta(seconds=10))
        age = timedelta(seconds=1)
        await (pruner.run_unconfirmed(by="ann", older_than=age) if is_forced else pruner.run(by="ann", older_than=age))

    served, other = Log("mail", "kafka"), Log("mail")
    with pytest.raises(HandoffRefused, match="A relay serves kafka"):
        await prune(served)
    assert served.pruned == []
    await prune(other)
    assert other.pruned == ["kafka"]


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, "There is no slot pillarbox_kafka"),
        (slot(wal_status="lost"), "has lost its place"),
        (slot(is_active=False), "Nobody reads the slot"),
        (slot(confirmed=None), "has not confirmed anything"),
        (slot(confirmed=0), "has not confirmed the last 1 bytes"),
    ],
)
async def test_a_slot_that_nobody_can_confirm_anything_by_prunes_nothing(found: SlotStatus | None, reason: str) -> None:
    """It may say that it has confirmed what was written: what it read before may still be lost with it."""
    log: Any = Log(slot=found)
    pruner = HandoffPruner(log, "kafka", slot="pillarbox_kafka", lease=timedelta(seconds=10))
    with pytest.raises(HandoffRefused, match=reason):
        await pruner.run(by="ann", wait=timedelta(0))
    assert log.pruned == []
