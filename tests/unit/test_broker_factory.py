"""From a URL and options to a transport or receiver, or to one sentence that says what is wrong."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from pillarbox.brokers import factory
from pillarbox.brokers.factory import receiver_from_url, receiver_schemes, transport_from_url, transport_schemes
from pillarbox.brokers.handlers import Handlers, HandlersTransport
from pillarbox.brokers.http import HttpTransport
from pillarbox.brokers.kafka import KafkaReceiver
from pillarbox.brokers.memory import MemoryQueue, MemoryReceiver, MemoryTransport
from pillarbox.brokers.nats import NatsReceiver
from pillarbox.brokers.rabbitmq import RabbitmqReceiver
from pillarbox.brokers.redis import RedisReceiver
from pillarbox.brokers.settings import TransportUrl, parse_transport_url
from pillarbox.errors import ConfigError
from pillarbox.redaction import Secret

handlers = Handlers()
"""What a URL names below."""

HERE = f"handlers:{__name__}:handlers"


def http(url: str, **options: object) -> HttpTransport:
    transport = transport_from_url(url, options=options)
    assert isinstance(transport, HttpTransport)
    return transport


def refused(url: str, /, **options: object) -> str:
    with pytest.raises(ConfigError) as error:
        transport_from_url(url, options=options)
    return str(error.value)


# --- schemes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["memory:", "memory://", "MEMORY:", " memory: "])
def test_memory(url: str) -> None:
    assert isinstance(transport_from_url(url), MemoryTransport)


def test_memory_has_options_and_no_place() -> None:
    assert transport_from_url("memory:?batch=7").features.batch == 7
    assert "no place" in refused("memory://somewhere")


def test_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, __name__, sys.modules[test_handlers.__module__])
    transport = transport_from_url(f"{HERE}?unhandled=ignore&threads=2")
    assert isinstance(transport, HandlersTransport)


@pytest.mark.parametrize("place", ["", "shop", "shop:", ":handlers", "shop mail:handlers", "shop:a.b", "../x:y"])
def test_handlers_must_be_named(place: str) -> None:
    assert "package.module:attribute" in refused(f"handlers:{place}")


def test_handlers_that_are_not_there() -> None:
    assert "cannot be loaded" in refused("handlers:no_such_module:handlers")
    assert "cannot be loaded" in refused("handlers:json:handlers")
    assert "it must be" in refused("handlers:json:dumps")


def test_handlers_options() -> None:
    assert "it has threads and unhandled" in refused(f"{HERE}?unhandeld=ignore")
    assert "reject or ignore" in refused(f"{HERE}?unhandled=drop")
    assert "between 1 and 1000" in refused(f"{HERE}?threads=0")


def test_an_unknown_scheme_lists_the_known_ones() -> None:
    *others, last = transport_schemes()
    assert {"amqp", "http", "memory", "mqtt"} <= set(others)
    listed = ", ".join(f"{scheme}:" for scheme in others)
    assert refused("carrier-pigeon://coop") == (
        f"No installed transport is called 'carrier-pigeon'; URLs begin with {listed} or {last}:."
    )


def test_a_misspelt_scheme_has_its_nearest_named() -> None:
    assert refused("amq://localhost").endswith("; the nearest is amqp:.")
    assert refused("htps://shop.example").endswith("; the nearest is https:.")


@pytest.mark.parametrize("url", ["", "shop", "//host", "https://shop.example/hooks#part", "1:x"])
def test_what_is_no_url_is_refused(url: str) -> None:
    assert "cannot be read" in refused(url)


def test_other_packages_bring_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = EntryPoints([EntryPoint("pigeon", f"{__name__}:pigeon", factory._TRANSPORTS.group)])
    monkeypatch.setitem(sys.modules, __name__, sys.modules[pigeon.__module__])
    monkeypatch.setattr(factory, "entry_points", found.select)
    transport = transport_from_url("pigeon://coop?batch=3")
    assert transport.features.batch == 3
    assert "pigeon" in transport_schemes()


def pigeon(url: TransportUrl) -> MemoryTransport:
    assert (url.scheme, url.location, url.address) == ("pigeon", "//coop", "pigeon://coop")
    return MemoryTransport(batch=int(str(url.options["batch"])))


def test_another_package_s_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    found = EntryPoints([EntryPoint("pigeon", "no_such_module:x", factory._TRANSPORTS.group)])
    monkeypatch.setattr(factory, "entry_points", found.select)
    assert "reinstall" in refused("pigeon://coop")


def test_a_missing_extra_says_how_to_get_it() -> None:
    program = (
        "import sys; sys.modules['aiohttp'] = None\n"
        "from pillarbox.errors import MissingExtra\n"
        "from pillarbox.brokers.factory import transport_from_url\n"
        "transport_from_url('memory:')\n"
        "try: transport_from_url('https://shop.example')\n"
        "except MissingExtra as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (
        'The http transport needs the package aiohttp, which is not installed: run pip install "pillarbox[http]".'
    )


def test_requests_are_received_without_the_extra_of_the_transport() -> None:
    program = (
        "import sys; sys.modules['aiohttp'] = None\nfrom pillarbox.brokers.http import HttpReceiver; HttpReceiver()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# --- options -----------------------------------------------------------------------------------------


def test_a_url_and_options_beside_it_say_the_same() -> None:
    url = (
        "https://shop.example/hooks?timeout=2m&mode=structured&concurrency=5&rejects=400,404&secret=env:A&secret=env:B"
        "&headers.x-tenant=shop&query.a=1&allow_private=true&gone=reject"
    )
    beside = http(
        "https://shop.example/hooks",
        timeout="2m",
        mode="structured",
        concurrency=5,
        rejects=[400, 404],
        secret=["env:A", "env:B"],
        headers={"x-tenant": "shop"},
        query={"a": "1"},
        allow_private=True,
        gone="reject",
    )
    assert http(url).settings == beside.settings
    assert beside.settings.timeout == timedelta(minutes=2)
    assert beside.settings.rejects == {400, 404}
    assert beside.settings.secret == (Secret("env:A"), Secret("env:B"))


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "a secret that is long enough")
    monkeypatch.setenv("B", "another one that is long enough")


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("15s", 15), ("2m", 120), ("1h", 3600), ("1m30s", 90), ("1.5s", 1.5)]
)
def test_durations(text: object, seconds: float) -> None:
    assert http("https://shop.example", timeout=text).settings.timeout == timedelta(seconds=seconds)


def test_values_are_percent_encoded_and_keep_their_plus() -> None:
    url = parse_transport_url("https://shop.example?secret=whsec_a+b/c=%26%3D", options={})
    assert url.options == {"secret": "whsec_a+b/c=&="}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timout": "5s"}, "no option 'timout'; it has allow_private, batch, ca, client_certificate"),
        ({"timeout": "soon"}, "timeout is not a duration"),
        ({"timeout": 5}, "timeout is not a duration"),
        ({"timeout": "99999999999999d"}, "over 0 and at most 1 hour"),
        ({"timeout": "forever"}, "over 0"),
        ({"timeout": "0s"}, "over 0"),
        ({"timeout": "2h"}, "over 0 and at most 1 hour"),
        ({"timeout": True}, "timeout"),
        ({"concurrency": "many"}, "concurrency"),
        ({"concurrency": 0}, "between 1 and 10000"),
        ({"mode": "batched"}, "one of binary or structured"),
        ({"method": "GET"}, "one of POST, PUT or PATCH"),
        ({"gone": "away"}, "one of unavailable or reject"),
        ({"rejects": "400,teapot"}, "rejects"),
        ({"rejects": [500]}, "rejects has 500"),
        ({"rejects": [429]}, "rejects has 429"),
        ({"verify": False}, "insecure=true"),
        ({"allow_private": "perhaps"}, "allow_private"),
        ({"client_key": "x.pem"}, "client_certificate"),
        ({"ca": "/no/such/file.pem"}, "option ca"),
        ({"client_certificate": "/no/such/file.pem"}, "option client_certificate"),
        ({"url": "https://other.example"}, "twice"),
        ({"headers": {"host": "other"}}, "set by the http transport itself"),
        ({"headers": {"Content-Length": "1"}}, "set by the http transport itself"),
        ({"headers": {"webhook-id": "1"}}, "set by the http transport itself"),
        ({"headers": {"a b": "1"}}, "not usable"),
        ({"headers": {"a": "1", "A": "2"}}, "twice"),
        ({"headers": {"a": "1\r\nhost: evil"}}, "control character"),
        ({"headers": ["a"]}, "headers"),
        ({"secret": 5}, "secret"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], said: str) -> None:
    assert said in refused("https://shop.example", **options)


def test_an_option_given_in_both_places_is_refused() -> None:
    assert "timeout is given in the transport URL and beside it" in refused(
        "https://x.example?timeout=1s", timeout="2s"
    )


@pytest.mark.parametrize("query", ["timeout", "=1", "Timeout=1s", "a&b=1", "headers.=1", "headers.a=1&headers.a=2",
                                   "headers.a=1&headers=b", "headers=b&headers.a=1"])  # fmt: skip
def test_what_is_no_option_is_refused(query: str) -> None:
    assert refused(f"https://shop.example?{query}")


# --- where it may go ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://shop.example", "unencrypted"),
        ("https://127.0.0.1", "a loopback address"),
        ("https://10.0.0.1:8443/x", "a private address"),
        ("https://[::1]", "a loopback address"),
        ("https://[::ffff:127.0.0.1]", "a loopback address"),
        ("https://[64:ff9b::7f00:1]", "a loopback address"),
        ("https://169.254.169.254/latest", "a link-local address"),
        ("https://127.1", "plain form"),
        ("https://2130706433", "plain form"),
        ("https://0x7f000001", "plain form"),
        ("https://0x7f.1", "plain form"),
        ("https://0177.0.0.1", "plain form"),
        ("https://127.0.0.01", "plain form"),
        ("https://127.0.0.1.", "plain form"),
        ("https://①②⑦.0.0.1", "in ASCII"),
        ("https://%31%32%37.0.0.1", "cannot be read"),
        ("https://shop.example\\@127.0.0.1", "in ASCII"),
        ("https://user:hunter2@shop.example", "login"),
        ("https://", "needs a URL"),
        ("https:///path", "cannot be read"),
        ("https://shop.example:99999", "port"),
        ("https://shop.example:x", "port"),
        ("https://[127.0.0.1]", "cannot be read"),
        ("https://[::1", "cannot be read"),
        ("https://a b.example", "in ASCII"),
        ("https://shop.example/a\nb", "in ASCII"),
    ],
)
def test_a_url_that_must_not_be_used_is_refused(url: str, said: str) -> None:
    message = refused(url)
    assert said in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    "url",
    ["https://shop.example", "https://1.1.1.1/x", "https://[2606:4700::1111]:8443/x", "https://xn--bcher-kva.example/",
     "https://shop.example./x", "http://10.0.0.1/x?allow_private=true", "http://localhost:8080?allow_private=true",
     "http://shop.example?insecure=true", "https://127.0.0.1?allow_private=true",
     "https://shop.example?verify=false&insecure=true"],
)  # fmt: skip
def test_a_url_that_may_be_used(url: str) -> None:
    http(url)


@pytest.mark.parametrize("host", ["169.254.169.254", "[fd00:ec2::254]", "0.0.0.1", "224.0.0.1", "100.100.100.200"])
def test_allow_private_does_not_open_everything(host: str) -> None:
    assert "never allowed" in refused(f"http://{host}?allow_private=true")


def test_insecure_does_not_open_private_addresses() -> None:
    assert "a loopback address" in refused("http://127.0.0.1?insecure=true")


def test_a_certificate_that_is_not_checked_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    http("https://shop.example/secret-path?verify=false&insecure=true")
    assert "The certificate of https://shop.example/… is not checked" in caplog.text
    assert "secret-path" not in caplog.text


# --- secrets -----------------------------------------------------------------------------------------

CANARY = "canary-0123456789-canary-0123456789"


def test_nothing_shows_a_secret() -> None:
    url = parse_transport_url(
        f"https://shop.example/{CANARY}?secret={CANARY}&headers.authorization=Bearer%20{CANARY}&query.token={CANARY}",
        options={},
    )
    transport = http(f"https://shop.example/{CANARY}", **url.options)
    shown = [repr(url), str(url), f"{url.__rich_repr__()}", repr(transport), repr(transport.settings)]
    shown += [str(transport.settings), f"{transport.settings.__rich_repr__()}", repr(transport.settings.secret)]
    assert not [text for text in shown if CANARY in text]
    assert "https://shop.example/…" in repr(transport)


def test_a_reference_is_shown_as_it_is() -> None:
    assert "env:A" in repr(http("https://shop.example?secret=env:A"))


@pytest.mark.parametrize(
    "url",
    [f"https://shop.example?secret={CANARY}&mode=x", f"https://shop.example?secret={CANARY[:5]}",
     f"https://shop.example?secret=whsec_{CANARY}", f"https://shop.example?{CANARY}", f"https://u:{CANARY}@shop.example",
     f"https://shop.example/{CANARY}?x=1", f"http://shop.example/{CANARY}", f"https://127.0.0.1/{CANARY}",
     f"https://shop.example?headers.a={CANARY}%0A", f"https://shop.example/#{CANARY}",
     f"https://shop.example?timeout={CANARY}", f"https://shop.example?concurrency={CANARY}"],
)  # fmt: skip
def test_no_error_repeats_a_secret(url: str) -> None:
    assert CANARY[:5] not in refused(url)


def test_a_secret_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{CANARY}\n")
    assert Secret(f"file:{file}").read(option="secret") == CANARY
    http(f"https://shop.example?secret=file:{file}")


def test_a_reference_that_leads_nowhere_names_its_option(tmp_path: Path) -> None:
    assert "option secret refers to the environment variable NO_SUCH" in refused("https://x.example?secret=env:NO_SUCH")
    assert "option headers.a refers to" in refused("https://x.example?headers.a=env:NO_SUCH")
    assert "env:NAME" in refused("https://x.example?secret=env:not+a+name")
    assert "cannot be read" in refused(f"https://x.example?secret=file:{tmp_path}/none")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "is empty" in refused(f"https://x.example?secret=file:{tmp_path}/empty")
    assert "not UTF-8" in refused(f"https://x.example?secret=file:{tmp_path}/binary")


# --- receivers -----------------------------------------------------------------------------------


def test_receivers_are_known_by_their_scheme() -> None:
    assert isinstance(receiver_from_url("amqp://broker.example?queue=orders"), RabbitmqReceiver)
    assert isinstance(receiver_from_url("nats://nats.example?stream=ORDERS&durable=billing"), NatsReceiver)
    assert isinstance(receiver_from_url("rediss://redis.example/2?stream=orders&group=billing"), RedisReceiver)
    assert isinstance(receiver_from_url("kafka://k1.example,k2.example?topics=a,b&group=billing"), KafkaReceiver)


def test_an_unknown_scheme_is_told_which_there_are() -> None:
    with pytest.raises(ConfigError, match=r"No installed receiver is called 'gopher'; URLs begin with .*amqp:"):
        receiver_from_url("gopher://x")


def test_requests_are_not_read_from_a_url() -> None:
    with pytest.raises(ConfigError, match="mounting HttpReceiver"):
        receiver_from_url("https://shop.example")


def made_elsewhere(url: TransportUrl) -> MemoryReceiver:
    return MemoryReceiver(MemoryQueue())


def test_another_package_brings_a_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("else", f"{__name__}:made_elsewhere", "pillarbox.receivers")
    monkeypatch.setattr(EntryPoint, "load", lambda _: made_elsewhere)
    monkeypatch.setattr(factory, "entry_points", lambda **how: EntryPoints([entry]).select(**how))
    assert isinstance(receiver_from_url("else://x"), MemoryReceiver)
    assert "else" in receiver_schemes()
