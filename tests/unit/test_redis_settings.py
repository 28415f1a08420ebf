"""What the Redis transport can be told, and what it refuses to be told."""

from __future__ import annotations

import logging

import pytest

from pillarbox.brokers.factory import transport_from_url
from pillarbox.brokers.redis import RedisSettings, RedisTransport
from pillarbox.brokers.redis.settings import Durability
from pillarbox.errors import ConfigError

CANARY = "canary-4711"


def opened(url: str, **options: object) -> RedisTransport:
    transport = transport_from_url(url, options=options)
    assert isinstance(transport, RedisTransport)
    return transport


def test_a_url_and_options_are_the_same() -> None:
    by_url = opened("rediss://a:7000/3?key=shop:{topic}&durability=waitaof:1&create=false&connections=2")
    beside = opened("rediss://a:7000/3", key="shop:{topic}", durability="waitaof:1", create=False, connections=2)
    assert by_url.settings == beside.settings
    assert (by_url.settings.endpoint.hosts, by_url.settings.database) == ((("a", 7000),), 3)
    assert by_url.settings.is_encrypted


def test_defaults() -> None:
    settings = RedisSettings(url="redis://a")
    assert (settings.endpoint.hosts, settings.database, settings.key) == ((("a", 6379),), 0, "{topic}")
    assert settings.required_durability == Durability()


@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        ("none", Durability()),
        ("wait:2", Durability(False, 2)),
        ("waitaof", Durability(True, 0)),
        ("waitaof:0", Durability(True, 0)),
        ("waitaof:2", Durability(True, 2)),
    ],
)
def test_durability(option: str, wanted: Durability) -> None:
    assert RedisSettings(url="redis://a", durability=option).required_durability == wanted


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://", "needs a host"),
        ("redis://a,b", "or the sentinels of one"),
        ("redis://a/orders", "number of a database"),
        ("redis+sentinel://a,b,c", "sentinels and no master"),
        ("redis+sentinel://a/shop/orders", "number of a database"),
        ("redis://a?sentinel_password=x", "need a URL with redis.sentinel"),
        ("redis+sentinel://a/shop?sentinel_user=x", "no sentinel_password"),
        ("redis://a?colour=red", "no option 'colour'"),
        ("redis://a?url=redis://b", "given twice"),
        ("redis://a?key={colour}", "no such field"),
        ("redis://a?durability=maybe", "none, wait:N, waitaof or waitaof:N"),
        ("redis://a?durability=wait", "none, wait:N"),
        ("redis://a?durability=wait:0", "none, wait:N"),
        ("redis://a?maxlen=0", "maxlen"),
        ("redis://a?connections=0", "connections"),
        ("redis://a?timeout=0s", "timeout"),
        ("redis://a?ca=/x", "rediss://"),
        ("rediss://a?verify=false", "insecure=true"),
        ("rediss://a?ca=/nowhere", "option ca"),
        ("redis://u:p@a?password=q", "leave one"),
    ],
)
def test_what_is_wrong_is_said(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        opened(url)


def test_the_scheme_is_redis() -> None:
    with pytest.raises(ConfigError, match="begins with redis://, rediss://"):
        RedisSettings(url="valkey://a")


def test_secrets_are_not_shown() -> None:
    for transport in (opened(f"redis://:{CANARY}@a"), opened("redis://a", user="u", password=CANARY)):
        for shown in (repr(transport), str(transport.settings), repr(transport._server), repr(transport._server.login)):
            assert CANARY not in shown


def test_dropping_entries_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        opened("redis://a?maxlen=1000")
    assert "maxlen=1000" in caplog.text


def test_sentinels_name_the_master() -> None:
    settings = RedisSettings(url="redis+sentinel://s1,s2:7000/shop/3")
    assert settings.endpoint.hosts == (("s1", 26379), ("s2", 7000))
    assert (settings.master, settings.database, settings.is_encrypted) == ("shop", 3, False)
    assert RedisSettings(url="rediss+sentinel://s1/shop").is_encrypted
    assert RedisSettings(url="redis+sentinel://s1/shop").database == 0
    assert RedisSettings(url="redis://a").master is None


def test_the_login_at_the_sentinels_stays_secret() -> None:
    transport = opened("redis+sentinel://s1/shop", sentinel_password=CANARY)
    assert CANARY not in repr(transport)
    assert CANARY not in repr(transport._server)
    assert transport._server.sentinel_login.password == CANARY
