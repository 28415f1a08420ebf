"""What is wrong in a configuration is named: the key, who gave it, and what was expected."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pillarbox.config import Config
from pillarbox.dashboard.serve import build_dashboard
from pillarbox.errors import ConfigError
from pillarbox.relay.configuration import list_served_destinations, read_relay_section
from tests.support.configs import BASE, entry, load, refusal


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[realy]\n", "FILE has an unknown key realy: the nearest known is relay."),
        ('[relay]\nleese = "1s"\n', "FILE has an unknown key relay.leese: the nearest known is relay.lease."),
        ("[relay.retention]\nfaild = 1\n", "relay.retention.faild: the nearest known is relay.retention.failed."),
        ("[relay]\nwindwo = 1\n", "relay.windwo: the nearest known is relay.window."),
        ('[store]\nuri = "x"\n', "store.uri: the nearest known is store.url."),
        ("[destinations.a]\nretry = {atempts = 1}\n", "atempts: the nearest known is destinations.a.retry.attempts."),
        ('[[outbox.routes]]\nto = "a"\ntopci = "x"\n', "unknown key 'topci': the nearest known is topic."),
        ("[log]\nzzz = 1\n", "unknown key log.zzz: known are log.deliveries_at, log.format, log.level."),
        ("relay = 1\n", "relay in FILE must be a table"),
        ("destinations = 1\n", "destinations in FILE must be a table"),
        ("[destinations]\na = 1\n", "destinations.a in FILE must be a table"),
        ("[destinations.a]\nretry = 3\n", "destinations.a.retry in FILE must be a table"),
        ("[relay]\nretention = 3\n", "relay.retention in FILE must be a table"),
    ],
)  # fmt: skip
def test_an_unknown_key_is_named_with_its_file_and_the_nearest(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("PILLARBOX_RELAY_LEESE", "PILLARBOX_RELAY_LEASE"),
        ("PILLARBOX_RELAY_RETENTION_FAIL", "PILLARBOX_RELAY_RETENTION_FAILED"),
        ("PILLARBOX_STORE_KEPE", "PILLARBOX_STORE_KEEP"),
        ("PILLARBOX_OUTBOX_SORCE", "PILLARBOX_OUTBOX_SOURCE"),
        ("PILLARBOX_LOG_FROMAT", "PILLARBOX_LOG_FORMAT"),
        ("PILLARBOX_DESTINATION_WEBHOOKS_BATCH", "PILLARBOX_DESTINATION_WEB_HOOKS_BATCH"),
    ],
)
def test_an_unknown_variable_is_named_with_the_nearest(tmp_path: Path, name: str, nearest: str) -> None:
    said = refusal(tmp_path, BASE, **{name: "1s"})

    assert said == f"The environment variable {name} is not known: the nearest known is {nearest}."


def test_variables_that_kubernetes_sets_for_a_service_are_left_alone(tmp_path: Path) -> None:
    links = {
        "PILLARBOX_RELAY_SERVICE_HOST": "10.0.0.1", "PILLARBOX_RELAY_SERVICE_PORT": "80",
        "PILLARBOX_RELAY_SERVICE_PORT_HTTP": "80", "PILLARBOX_RELAY_PORT": "tcp://10.0.0.1:80",
        "PILLARBOX_RELAY_PORT_80_TCP": "tcp://10.0.0.1:80", "PILLARBOX_RELAY_PORT_80_TCP_ADDR": "10.0.0.1",
        "PILLARBOX_SERVICE_HOST": "10.0.0.1", "PILLARBOX_PORT": "tcp://10.0.0.1:80",
    }  # fmt: skip

    assert entry(load(tmp_path, **links), ("relay", "service")).value == "pillarbox"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[relay]\nlease = 10\n", 'relay.lease in FILE must be a duration, such as "250ms"'),
        ('[relay]\nlease = "soon"\n', "must be a duration"),
        ("[relay]\nlease = true\n", "must be a duration"),
        ('[relay]\nlease = "99999999999999d"\n', "longer than a hundred years"),
        ('[relay]\nlease = "40000d"\n', "longer than a hundred years"),
        ('[relay]\nlease = "forever"\n', "relay.lease in FILE cannot be forever."),
        ('[relay]\nlease = "1ms"\n', "three times in its length (see relay.lease in FILE)."),
        ("[relay]\nmax_lanes = 0\n", "(see relay.max_lanes in FILE)."),
        ("[destinations.a]\nretry = {attempts = 0}\n", "(see destinations.a.retry.attempts in FILE)."),
        ('[store]\nurl = "a"\n[store]\nprefix = "b"\n', "[store] stands there twice (at line 3, column 7): put all"),
        ('[destinations.a]\n[destinations.a]\n', "[destinations.a] stands there twice"),
        ('[relay]\nlease = "1s"\nlease = "2s"\n', "a key is set twice"),
        ('[[outbox.routes]]\ntopic = "a"\n', "outbox.routes in FILE lacks the key 'to': add it."),
        ('[relay.retention]\nevery = "forever"\n', "relay.retention.every in FILE cannot be forever."),
        ("[relay]\nbatch = 2.5\n[destinations.a]\n", "destinations.a.batch in FILE must be a whole number."),
        ("[destinations.a]\nbatch = true\n", "destinations.a.batch in FILE must be a whole number."),
        ("[destinations.a]\nbatch = 0\n", "must be at least 1 (see destinations.a.batch in FILE)."),
        ('[destinations.a]\nrate = "nan"\n', "destinations.a.rate in FILE must be a number."),
        ('[destinations.a]\nrate = "fast"\n', "must be a number."),
        ("[destinations.a]\nafter_failure = 'stop'\n", "must be one of continue, hold."),
        ('[relay]\nduties = ["send", "sing"]\n', "must be one of send, retry, recover, clean."),
        ('[relay]\nduties = ["send", "rety"]\n', "retry, recover, clean: the nearest is retry."),
        ('[log]\nlevel = "Wraning"\n', "must be one of debug, info, warning, error: the nearest is warning."),
        (
            "[relay]\ndestinations = [1]\n",
            "relay.destinations in FILE must be a text: write a list of names of destinations.",
        ),
        ("[relay]\nduties = []\n", "at least one duty"),
        ('[relay]\nduties = ["send", "clean"]\n', "send and retry go together"),
        ('[relay]\nduties = ["clean", "clean"]\n', "A duty is named twice"),
        ('[relay]\nretry_interval = "0s"\n', "must be greater than zero (see relay.retry_interval in FILE)."),
        ("[relay]\nduties = 3\n", "must be a list"),
        ("[relay]\nlabels = 3\n", "relay.labels in FILE must be a table of texts"),
        ('[relay]\nlabels = "team"\n', "must be a table of texts"),
        ("[relay.labels]\nteam = 3\n", "relay.labels in FILE must be a table of texts"),
        ("[relay.labels.team]\nname = 'a'\n", "must be a table of texts"),
        ("[relay.labels]\n'a b' = 'c'\n", "The label 'a b' is not usable"),
        ("[relay.labels]\nteam = ''\n", "The label 'team' is not usable"),
        ("[relay.labels]\n" + "".join(f"n{number} = 'a'\n" for number in range(33)), "at most 32 labels"),
        ("[relay]\nservice = 3\n", "relay.service in FILE must be a text."),
        ('[outbox]\nserialize_keys = "perhaps"\n', "must be true or false."),
        ("[outbox]\nroutes = [1]\n", "must be a table with to, topic"),
        ("[[outbox.routes]]\nto = 3\n", "outbox.routes in FILE cannot be read"),
        ('[destinations.a]\nretry = {schedule = ["forever"]}\n', "retry.schedule in FILE cannot be forever."),
        ('[destinations.a]\nretry = {schedule = ["1s"], first = "1s"}\n', "exclude each other"),
        ('[destinations.a]\nretry = {jitter = 1}\n', "jitter is a part"),
        ('[destinations.a]\ndead_letter = "b"\n', "the unknown b"),
        ('[destinations.a]\ndead_letter = "a"\n', "its own dead letter"),
        (
            '[destinations.a]\ndead_letter = "b"\n[destinations.b]\ndead_letter = "a"\n',
            "The dead letters of a, b go round",
        ),
        ('[destinations."a b"]\n', "'a b' is not usable"),
        ("[destinations._skipped]\n", "reserved"),
        ('[relay]\ndestinations = ["a", "a"]\n[destinations.a]\n', "named twice"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_what_was_expected(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, text)


def test_a_wrong_variable_and_a_wrong_flag_go_by_their_names(tmp_path: Path) -> None:
    assert refusal(tmp_path, PILLARBOX_RELAY_MAX_LANES="many") == "PILLARBOX_RELAY_MAX_LANES must be a whole number."
    with pytest.raises(ConfigError, match="--lease must be a duration"):
        read_relay_section(load(tmp_path, "", {("relay", "lease"): "soon"}))


def test_a_file_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "pillarbox.toml"
    file.write_text("# " + "x" * 1_100_000)
    for path in (file, Path("/dev/zero")):
        with pytest.raises(ConfigError, match="larger than"):
            Config.load(path)


def test_lists_without_end_are_no_configuration(tmp_path: Path) -> None:
    file = tmp_path / "pillarbox.toml"
    file.write_text("a = " + "[" * 100_000)
    with pytest.raises(ConfigError, match="lists in lists"):
        Config.load(file)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('url = "amqp://localhost"\npassword = "env:NOT_SET"\n', "destinations.a.password"),
        ('url = "amqp://localhost"\npassword = "file:/not/there"\n', "destinations.a.password"),
        ('url = "amqp://localhost"\npassword = "${NOT_SET}"\n', "destinations.a.password"),
        ('url = "https://a.example/"\nheaders = {auth = "env:NOT_SET"}\n', "destinations.a.headers.auth"),
    ],
)
def test_a_secret_that_leads_nowhere_is_named_with_its_key_and_file(tmp_path: Path, text: str, where: str) -> None:
    config = load(tmp_path, f"[destinations.a]\n{text}")
    with pytest.raises(ConfigError, match="refers to") as refused:
        list_served_destinations(config)[0].build()
    assert f"(given by {where} in {tmp_path / 'pillarbox.toml'})." in str(refused.value)


def test_an_option_that_nobody_knows_lists_each_known_one_once(tmp_path: Path) -> None:
    config = load(tmp_path, '[destinations.a]\nurl = "amqp://localhost"\nzzzzzz = 1\n')
    with pytest.raises(ConfigError) as refused:
        list_served_destinations(config)[0].build()
    _, _, known = str(refused.value).partition("; known are ")
    words = known.removesuffix(").").split(", ")
    assert "retry" in words
    assert sorted(set(words)) == words


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('users = ["ann:owner:env:NOT_SET"]\n', "dashboard.users (ann)"),
        ('token = "env:NOT_SET"\n', "dashboard.token"),
        ('secret = "file:/not/there"\n', "dashboard.secret"),
    ],
)
def test_a_secret_of_the_dashboard_that_leads_nowhere_is_named_with_its_key(
    tmp_path: Path, text: str, key: str
) -> None:
    with pytest.raises(ConfigError, match=f"^The option {re.escape(key)} refers to"):
        build_dashboard(load(tmp_path, f"[dashboard]\n{text}"), {}, host="127.0.0.1")
