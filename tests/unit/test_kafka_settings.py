"""What the Kafka transport can be told, what it tells the client, and what it keeps to itself."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest

from pillarbox.brokers.factory import transport_from_url
from pillarbox.brokers.kafka import KafkaSettings, KafkaTransport, kafka_settings
from pillarbox.brokers.kafka.settings import (
    build_connection_config,
    build_producer_config,
    build_run_producer_config,
    read_secrets,
)
from pillarbox.brokers.settings import parse_transport_url
from pillarbox.errors import ConfigError
from pillarbox.redaction import Secret

URL = "kafka://broker.example"
CANARY = "canary-4711"


def settings(query: str = "", *, host: str = "broker.example") -> KafkaSettings:
    return kafka_settings(parse_transport_url(f"kafka://{host}{query}", options={}))


# --- what keeps messages safe ---


def test_the_client_is_told_to_be_safe() -> None:
    config = build_producer_config(KafkaSettings(url=URL))
    assert config["enable.idempotence"] is True
    assert config["acks"] == "all"
    assert config["partitioner"] == "murmur2_random"
    assert config["allow.auto.create.topics"] is False


def test_asking_never_creates_a_topic() -> None:
    assert build_connection_config(KafkaSettings(url=URL))["allow.auto.create.topics"] is False


@pytest.mark.parametrize(("timeout", "message"), [("10s", 9_000), ("30s", 29_000), ("1s", 500), ("500ms", 250)])
def test_the_client_gives_a_message_up_before_we_do(timeout: str, message: int) -> None:
    config = build_producer_config(settings(f"?timeout={timeout}"))
    assert config["message.timeout.ms"] == message
    assert int(config["socket.timeout.ms"]) < message


@pytest.mark.parametrize(
    "name",
    [
        "acks", "request.required.acks", "enable.idempotence", "retries", "max.in.flight", "transactional.id",
        "partitioner", "delivery.report.only.error", "allow.auto.create.topics", "queuing.strategy",
    ],
)  # fmt: skip
def test_what_could_lose_messages_cannot_be_set(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"client\.{name} .* cannot be set: messages could be lost"):
        settings(f"?client.{name}=1")


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("bootstrap.servers", "the URL"),
        ("security.protocol", "the option tls"),
        ("sasl.password", "the option password"),
        ("ssl.ca.location", "the option ca"),
        ("enable.ssl.certificate.verification", "the option verify"),
        ("message.timeout.ms", "the option timeout"),
        ("compression.type", "the option compression"),
    ],
)
def test_what_has_an_option_is_not_set_twice(name: str, place: str) -> None:
    with pytest.raises(ConfigError, match=rf"client\.{name} .* use {place}"):
        settings(f"?client.{name}=1")


@pytest.mark.parametrize("name", ["error_cb", "test.mock.num.brokers", "plugin.library.paths"])
def test_what_runs_code_cannot_be_set(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be set"):
        settings(f"?client.{name}=1")


def test_other_settings_of_the_client_pass_through() -> None:
    config = build_producer_config(settings("?client.linger.ms=5&client.client.id=shop"))
    assert (config["linger.ms"], config["client.id"]) == ("5", "shop")


# --- where and as whom ---


def test_several_servers_are_written_with_commas() -> None:
    config = build_connection_config(settings(host="one.example,two.example:9093,[::1]"))
    assert config["bootstrap.servers"] == "one.example:9092,two.example:9093,[::1]:9092"


@pytest.mark.parametrize(
    ("query", "protocol"),
    [
        ("", "PLAINTEXT"),
        ("?tls=true", "SSL"),
        ("?user=shop&password=x", "SASL_PLAINTEXT"),
        ("?user=shop&password=x&tls=true", "SASL_SSL"),
        ("?client.sasl.mechanism=OAUTHBEARER&tls=true", "SASL_SSL"),
    ],
)
def test_the_protocol_follows_from_the_options(query: str, protocol: str) -> None:
    assert build_connection_config(settings(query))["security.protocol"] == protocol


def test_a_login_is_shown_by_scram_unless_told_otherwise() -> None:
    config = build_connection_config(settings(host="shop:secret@broker.example"))
    assert config["sasl.mechanism"] == "SCRAM-SHA-512"
    assert (config["sasl.username"], config["sasl.password"]) == ("shop", "secret")
    assert build_connection_config(settings("?user=a&password=b&sasl=PLAIN&tls=true"))["sasl.mechanism"] == "PLAIN"


def test_certificates_are_checked_unless_told_otherwise() -> None:
    checked = build_connection_config(settings("?tls=true&ca=/ca.pem&client_certificate=/client.pem"))
    assert checked["enable.ssl.certificate.verification"] is True
    assert checked["ssl.endpoint.identification.algorithm"] == "https"
    assert (checked["ssl.ca.location"], checked["ssl.key.location"]) == ("/ca.pem", "/client.pem")
    unchecked = build_connection_config(settings("?tls=true&verify=false&insecure=true"))
    assert unchecked["enable.ssl.certificate.verification"] is False


# --- slips ---


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("?colour=red", "has no option 'colour'"),
        ("?timeout=soon", "timeout is not a duration"),
        ("?timeout=10ms", "timeout .* at least 500ms"),
        ("?partitions=0", "partitions .* between 1"),
        ("?replication=many", "replication"),
        ("?max_message_bytes=10", "max_message_bytes .* between 1000"),
        ("?compression=zip", "compression .* one of none, gzip"),
        ("?sasl=GSSAPI", "sasl .* one of PLAIN"),
        ("?topic={colour}", "no such field"),
        ("?ca=/ca.pem", "need tls=true"),
        ("?verify=false&insecure=true", "need tls=true"),
        ("?tls=true&verify=false", "add insecure=true"),
        ("?user=shop", "a user and a password, or neither"),
        ("?password=x", "a user and a password, or neither"),
        ("?user=shop&password=x&sasl=PLAIN", "would send the password unencrypted"),
        ("?user=shop&password=x&client.sasl.mechanism=PLAIN", "write the option sasl"),
        ("/orders", "name the topic with the option topic"),
        ("?client.sasl.mechanism=SCRAM-SHA-512", "does not take its settings"),
        ("?client.no.such.thing=1", r"does not take its settings: No such configuration property"),
        ("?client.linger.ms=soon", "does not take its settings"),
    ],
)
def test_a_wrong_option_is_one_clear_sentence(query: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as wrong:
        transport_from_url(f"{URL}{query}")
    assert str(wrong.value).endswith(".")
    assert "\n" not in str(wrong.value)


def test_a_url_needs_a_host() -> None:
    with pytest.raises(ConfigError, match="needs a host"):
        transport_from_url("kafka:")


# --- secrets ---


def test_secrets_are_shown_nowhere() -> None:
    given = KafkaSettings(
        url=f"kafka://shop:{CANARY}@broker.example",
        tls=True,
        client={"ssl.key.password": Secret(CANARY), "sasl.oauthbearer.client.secret": Secret(CANARY)},
    )
    transport = KafkaTransport(given)
    assert CANARY not in f"{given!r} {transport!r} {given.login(given.endpoint)!r}"
    assert read_secrets(given) == [CANARY, CANARY, CANARY]


@pytest.mark.parametrize(
    "query", [f"?client.ssl.key.password={CANARY}&client.linger.ms={CANARY}", f"?password={CANARY}", f"?x={CANARY}"]
)
def test_errors_keep_secrets_to_themselves(query: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        transport_from_url(f"kafka://shop@broker.example{query}&timeout=1ms")
    assert CANARY not in str(wrong.value)


def test_secrets_come_from_elsewhere() -> None:
    given = settings("?user=shop&password=env:KAFKA_PASSWORD&client.ssl.key.password=env:KEY_PASSWORD")
    config = build_producer_config(given, environ={"KAFKA_PASSWORD": "one", "KEY_PASSWORD": "two"})
    assert (config["sasl.password"], config["ssl.key.password"]) == ("one", "two")
    with pytest.raises(ConfigError, match=r"client\.ssl\.key\.password .* KEY_PASSWORD, which is not set"):
        build_producer_config(given, environ={"KAFKA_PASSWORD": "one"})


def test_the_features_say_what_is_promised() -> None:
    features = KafkaTransport(KafkaSettings(url=URL, max_message_bytes=5_000, timeout=timedelta(seconds=1))).features
    assert (features.name, features.max_payload) == ("kafka", 5_000)


def test_a_missing_driver_names_its_pip_command() -> None:
    program = (
        "import sys; sys.modules['confluent_kafka'] = None\n"
        "from pillarbox.errors import MissingExtra\n"
        "from pillarbox.brokers.factory import transport_from_url\n"
        "try: transport_from_url('kafka://broker.example')\n"
        "except MissingExtra as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (
        "The kafka transport needs the package confluent-kafka, which is not installed: run pip install "
        '"pillarbox[kafka]".'
    )


def test_a_producer_of_runs_gives_no_message_up_by_itself() -> None:
    """One that gives up a message goes on with the next, guarantee or not."""
    config = build_run_producer_config(KafkaSettings(url=URL))
    assert config["enable.gapless.guarantee"] is True
    assert config["message.timeout.ms"] == 0
    assert config | {"enable.gapless.guarantee": None, "message.timeout.ms": None} == (
        build_producer_config(KafkaSettings(url=URL)) | {"enable.gapless.guarantee": None, "message.timeout.ms": None}
    )
