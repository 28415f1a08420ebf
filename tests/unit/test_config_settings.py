"""What a configuration becomes: settings, destinations, a store, an outbox. Without its secrets when shown."""

from __future__ import annotations

import tomllib
from datetime import timedelta
from pathlib import Path

import pytest

from pillarbox import Outbox
from pillarbox.brokers.memory import MemoryTransport
from pillarbox.cli.config import format_toml, list_entries
from pillarbox.config import SECTIONS
from pillarbox.durations import FOREVER
from pillarbox.errors import ConfigError, UnknownDestination
from pillarbox.message import Kind, Names
from pillarbox.relay.configuration import list_served_destinations, read_destinations, read_relay_section, read_store
from pillarbox.relay.settings import Duty
from pillarbox.retry import RetryPolicy
from pillarbox.settings import format_key
from tests.support.configs import BASE, entry, load, refusal

# --- the typed result --------------------------------------------------------------------------------


def test_a_relay_gets_what_its_settings_say(tmp_path: Path) -> None:
    text = '[relay]\nlease = "3s"\nmax_lanes = 5\n[relay.retention]\nfailed = "1d"\ndelivered = "forever"\n'
    text += '[relay.labels]\nteam = "shop"\n"example.org/zone" = "eu"\n'
    settings = read_relay_section(load(tmp_path, text, PILLARBOX_RELAY_DUTIES="retry,send")).settings

    assert (settings.lease, settings.max_lanes, settings.duties) == (timedelta(seconds=3), 5, (Duty.RETRY, Duty.SEND))
    assert settings.labels == {"team": "shop", "example.org/zone": "eu"}
    assert (settings.retention.failed, settings.retention.delivered) == (timedelta(days=1), FOREVER)


SCHEDULES = {"30s,1m,2m,5m": (30, 60, 120, 300), "10s,5m,10m,30m,1h": (10, 300, 600, 1800, 3600)}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_come_from_the_file_and_from_the_environment(tmp_path: Path, schedule: str) -> None:
    delays = tuple(timedelta(seconds=seconds) for seconds in SCHEDULES[schedule])
    listed = ", ".join(f'"{delay}"' for delay in schedule.split(","))
    text = f"[destinations.a]\nretry = {{schedule = [{listed}], attempts = 9, jitter = 0}}\n[destinations.b]\n"

    made = read_destinations(load(tmp_path, text, PILLARBOX_DESTINATION_B_RETRY_SCHEDULE=schedule))

    assert made["a"].section.settings.retry == RetryPolicy(schedule=delays, attempts=9, jitter=0.0)
    assert made["b"].section.settings.retry == RetryPolicy(schedule=delays)


def test_a_schedule_of_the_file_can_be_taken_back(tmp_path: Path) -> None:
    text = '[destinations.a]\nretry = {schedule = ["1s"]}\n'
    environ = {"PILLARBOX_DESTINATION_A_RETRY_SCHEDULE": "none", "PILLARBOX_DESTINATION_A_RETRY_FIRST": "3s"}

    retry = read_destinations(load(tmp_path, text, **environ))["a"].section.settings.retry

    assert retry == RetryPolicy(first=timedelta(seconds=3))


def test_what_relay_says_holds_for_every_destination_unless_the_same_source_says_more(tmp_path: Path) -> None:
    text = "[relay]\nbatch = 1\nwindow = 2\nretry = {attempts = 3}\n[destinations.a]\nbatch = 11\n[destinations.b]\n"

    def served(**environ: str) -> dict[str, tuple[int, int, int | None]]:
        made = [one.section.settings for one in read_destinations(load(tmp_path, text, **environ)).values()]
        return {one.name: (one.batch, one.window, one.retry.attempts) for one in made}

    assert served() == {"a": (11, 2, 3), "b": (1, 2, 3)}
    assert served(PILLARBOX_RELAY_BATCH="5") == {"a": (5, 2, 3), "b": (5, 2, 3)}
    assert served(PILLARBOX_RELAY_BATCH="5", PILLARBOX_DESTINATION_B_BATCH="6") == {"a": (5, 2, 3), "b": (6, 2, 3)}


def test_a_relay_serves_all_or_those_it_was_told(tmp_path: Path) -> None:
    text = '[destinations.a]\nurl = "memory:"\n[destinations.b]\nurl = "memory:"\n'

    def names(**environ: str) -> list[str]:
        return [one.name for one in list_served_destinations(load(tmp_path, text, **environ))]

    assert names() == ["a", "b"]
    assert names(PILLARBOX_RELAY_DESTINATIONS="b") == ["b"]
    assert names(PILLARBOX_DESTINATION_C_URL="memory:") == ["a", "b", "c"]
    with pytest.raises(UnknownDestination, match=r"no destination bb: the nearest known is b\."):
        names(PILLARBOX_RELAY_DESTINATIONS="bb")


def test_the_longest_name_that_fits_has_the_variable(tmp_path: Path) -> None:
    environ = {
        "PILLARBOX_DESTINATION_EU_URL": "memory:",
        "PILLARBOX_DESTINATION_EU_BILLING_URL": "memory:",
        "PILLARBOX_DESTINATION_EU_BATCH": "1",
        "PILLARBOX_DESTINATION_EU_BILLING_BATCH": "2",
    }
    made = read_destinations(load(tmp_path, **environ))

    assert {name: one.section.settings.batch for name, one in made.items()} == {"eu": 1, "eu_billing": 2}


def test_a_variable_that_may_mean_two_is_refused(tmp_path: Path) -> None:
    text = "[destinations.a-b]\n[destinations.a_b]\n"

    assert "may mean the destination a-b or a_b" in refusal(tmp_path, text, PILLARBOX_DESTINATION_A_B_RATE="1")


def test_the_rest_of_a_destination_goes_to_its_transport(tmp_path: Path) -> None:
    text = '[destinations.b]\nurl = "memory:?batch=3"\n[destinations.c]\nurl = "memory:"\n'
    made = read_destinations(load(tmp_path, text + "bacth = 7\n"))
    transport = made["b"].transport_options.build_transport()

    assert isinstance(transport, MemoryTransport)
    assert (transport.features.batch, made["b"].section.settings.batch) == (3, 500)
    with pytest.raises(
        ConfigError,
        match=r"Destination c .* no option 'bacth'.* Did you mean batch\? \(given by destinations\.c\.bacth in ",
    ):
        made["c"].build()


def test_a_destination_without_a_usable_url_is_refused_when_it_is_served(tmp_path: Path) -> None:
    text = '[destinations.a]\n[destinations.b]\nurl = "memory:${NOT_SET}"\n[destinations.c]\nurl = 3\n'
    made = read_destinations(load(tmp_path, text))
    for name, why in (("a", "has no url"), ("b", r"refers to \$\{NOT_SET\}"), ("c", "must be a text")):
        with pytest.raises(ConfigError, match=f"Destination {name} cannot be served: .*{why}"):
            made[name].build()


def test_the_store_s_options_may_stand_beside_its_url(tmp_path: Path) -> None:
    text = '[store]\nurl = "${DB}"\nkeep = "off"\nschema = "mail"\n'
    url, names = read_store(load(tmp_path, text, DB="postgresql://app:p%40ss@db/shop?sslmode=require"))

    assert url.dsn == "postgresql://app:p%40ss@db/shop?sslmode=require"
    assert (url.options, names) == ({"keep": "off"}, Names("mail"))
    with pytest.raises(ConfigError, match="keep twice"):
        read_store(load(tmp_path, '[store]\nurl = "sqlite:///a.db?keep=full"\nkeep = "off"\n'))
    with pytest.raises(ConfigError, match="No store is configured"):
        read_store(load(tmp_path))


# --- Outbox.from_config ------------------------------------------------------------------------------

OUTBOX = """
[outbox]
source = "/shop"
default = "b"
max_payload = 5
[[outbox.routes]]
to = ["a", "b"]
topic = "orders.*"
kind = "event"
headers = {tenant = "eu-*"}
[store]
schema = "mail"
prefix = "box_"
[destinations.a]
url = "memory:"
"""


def outbox(folder: Path, text: str, **environ: str) -> Outbox:
    file = folder / "pillarbox.toml"
    file.write_text(text)
    return Outbox.from_config(file, environ=environ)


def test_an_outbox_comes_from_the_same_file(tmp_path: Path) -> None:
    made = outbox(tmp_path, OUTBOX, PILLARBOX_DESTINATION_B_URL="memory:", PILLARBOX_OUTBOX_SOURCE="/other")

    assert (made.source, made.names) == ("/other", Names("mail", "box_"))
    find = made.routes.find
    assert find(topic="orders.eu", type="t", kind=Kind.EVENT, headers={"tenant": "eu-1"}) == ("a", "b")
    assert find(topic="orders.eu", type="t", kind=Kind.EVENT, headers={"tenant": "us"}) == ("b",)
    assert find(topic="orders.eu", type="t", kind=Kind.COMMAND, headers={"tenant": "eu-1"}) == ("b",)


def test_a_route_to_a_destination_that_nobody_configured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownDestination, match="unknown destination b: known are a"):
        outbox(tmp_path, OUTBOX)
    with pytest.raises(UnknownDestination, match="unknown destination bill: the nearest known is bills"):
        outbox(
            tmp_path,
            OUTBOX.replace('"b"', '"bill"').replace("destinations.a", "destinations.bills").replace('"a", ', ""),
        )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "No source is configured"),
        ('[outbox]\nsource = "/shop"\n', "neither routes nor a default"),
        ('[outbox]\nsource = "/shop"\nmax_payload = 0\ndefault = "a"\n[destinations.a]\n', "max_payload=0"),
        ('[outbox]\nsource = "not a uri"\ndefault = "a"\n[destinations.a]\n', "URI reference"),
        ('[outbox]\nsuorce = "/shop"\n', "outbox.suorce: the nearest known is outbox.source."),
    ],
)
def test_an_outbox_that_cannot_be_made_says_why(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        outbox(tmp_path, text)
    assert said in str(refused.value)


# --- secrets -----------------------------------------------------------------------------------------

CANARY = "c4nary-s3cret"


def test_no_secret_is_shown(tmp_path: Path) -> None:
    text = f"""
        [store]
        url = "postgresql://app:{CANARY}@db/shop?sslpassword={CANARY}"
        [destinations.a]
        url = "https://user:{CANARY}@shop.example/{CANARY}?secret={CANARY}"
        secret = ["whsec_{CANARY}", "env:SECRET"]
        password = "{CANARY}"
        api_key = "{CANARY}"
        headers = {{authorization = "Bearer {CANARY}", x-tenant = "{CANARY}"}}
        query = {{t = "{CANARY}"}}
        broker = "amqp://user:{CANARY}@broker"
        ca = "/etc/ca.pem"
        [destinations.b]
        url = "${{WHOLE}}"
        [destinations.c]
        url = "not a url {CANARY}"
    """
    config = load(tmp_path, text, WHOLE=f"https://x.example/{CANARY}", PILLARBOX_DESTINATION_B_TOKEN=CANARY)
    entries = list_entries(config)
    made = read_destinations(config)

    assert CANARY not in format_toml(entries)
    assert CANARY not in "".join(map(repr, (config, entries, *(one.transport_options for one in made.values()))))
    shown = {format_key(one.path[2:]): one.value for one in entries if one.path[:2] == ("destinations", "a")}
    assert (shown["ca"], shown["secret"]) == ("/etc/ca.pem", ["***", "env:SECRET"])
    assert entry(config, ("store", "url")).value == "postgresql://app:***@db/shop?sslpassword=***"
    assert tomllib.loads(format_toml(entries))["destinations"]["b"]["url"] == "https://x.example/…"


# --- the page about it -------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()


def test_the_example_of_the_docs_is_a_configuration(tmp_path: Path) -> None:
    text = PAGE.split("```toml\n")[1].split("```")[0]

    # Several stores are in place of the one that most have.
    assert {entry.path[0] for entry in list_entries(load(tmp_path, text))} == set(SECTIONS) - {"stores"}
    assert outbox(tmp_path, text).source == "/shop"


def test_every_option_is_in_the_docs(tmp_path: Path) -> None:
    for one in list_entries(load(tmp_path, BASE)):
        assert f"`{one.path[-1]}`" in PAGE
