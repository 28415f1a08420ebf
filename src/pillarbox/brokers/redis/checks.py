"""Checks of the server and its streams: settings that could lose messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pillarbox.brokers.checks import expand_topics, report_critical, report_info, report_warning, sort_findings
from pillarbox.brokers.redis.connection import Connection
from pillarbox.brokers.redis.errors import ErrorReply
from pillarbox.brokers.redis.settings import Durability, RedisSettings
from pillarbox.contracts.finding import Finding
from pillarbox.redaction import redact_line

__all__ = ["check_server"]

_LEAST_SENTINELS: Final = 3
"""With fewer, no majority is left when one is away."""
_SETTINGS: Final = (
    "appendonly",
    "appendfsync",
    "save",
    "maxmemory",
    "maxmemory-policy",
    "min-replicas-to-write",
)


async def check_server(connection: Connection, settings: RedisSettings, *, topics: Sequence[str]) -> Sequence[Finding]:
    """Return findings about the server and the streams of these topics, worst first."""
    findings: list[Finding] = []
    values = await _read_settings(connection)
    if isinstance(values, ErrorReply):
        findings.append(_report_unseen_settings(values))
    else:
        findings += _check_settings(values, settings.required_durability)
    findings += _check_replication(await _read_replication(connection), has_sentinels=settings.has_sentinels)
    for key in expand_topics(settings.key, topics):
        findings += await _check_key(connection, key, settings)
    findings += _check_options(settings)
    return sort_findings(findings)


async def _read_settings(connection: Connection) -> Mapping[str, str] | ErrorReply:
    values: dict[str, str] = {}
    for name in _SETTINGS:  # one by one: Redis 6 takes only one
        reply = await connection.call("CONFIG", "GET", name)
        if isinstance(reply, ErrorReply):
            return reply
        if isinstance(reply, list) and len(reply) == 2:
            values[name] = bytes(reply[1]).decode(errors="replace")
    return values


async def _read_replication(connection: Connection) -> Mapping[str, str]:
    reply = await connection.call("INFO", "replication")
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else ""
    pairs = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def _check_settings(values: Mapping[str, str], durability: Durability) -> Iterator[Finding]:
    """Yield findings about the server's settings, given the durability that each send waits for."""
    policy = values.get("maxmemory-policy", "noeviction")
    if values.get("maxmemory", "0") != "0" and policy.startswith("allkeys"):
        yield report_critical(
            "redis.eviction",
            what=f"The server removes keys when its memory is full (maxmemory-policy {policy}).",
            why="A whole stream is dropped, with messages that nobody has read.",
            fix="Set maxmemory-policy noeviction: then it refuses, and the messages wait in the outbox.",
        )
    if values.get("appendonly") == "yes":
        yield from _check_appendfsync(values.get("appendfsync", ""), durability)
    elif values.get("save"):
        yield report_warning(
            "redis.snapshots-only",
            what="The server writes snapshots and no append-only file.",
            why="What was added since the last snapshot, often minutes, is lost when it dies.",
            fix="Set appendonly yes.",
        )
    elif "appendonly" in values:
        yield report_warning(
            "redis.no-persistence",
            what="The server writes nothing to disk (appendonly no, no save).",
            why="All streams are gone when it restarts.",
            fix="Set appendonly yes.",
        )


def _check_appendfsync(appendfsync: str, durability: Durability) -> Iterator[Finding]:
    if appendfsync == "no":
        yield report_warning(
            "redis.appendfsync-no",
            what="The server leaves it to the system when to write to disk (appendfsync no).",
            why="What was added in the last half minute or so is lost when the machine loses power.",
            fix="Set appendfsync always or everysec, or durability=waitaof.",
        )
    if appendfsync == "everysec" and not durability.is_synced:
        yield report_warning(
            "redis.appendfsync-everysec",
            what="The server writes to disk every second (appendfsync everysec).",
            why="What was added in the last second or two is lost when the machine loses power, or when the server is "
            "killed while its disk is slow: it acknowledges before it writes.",
            fix="Set durability=waitaof (Redis 7.2, Valkey), or appendfsync always.",
        )


def _check_replication(info: Mapping[str, str], *, has_sentinels: bool) -> Iterator[Finding]:
    """Yield findings about the server's replicas, from the section replication of INFO."""
    if info.get("role") == "slave":
        yield report_critical(
            "redis.replica",
            what="The server is a replica.",
            why="It takes no message: the destination is out of service.",
            fix="Put the master into the URL.",
        )
    replicas = info.get("connected_slaves", "0")
    if replicas == "0" and has_sentinels and info.get("role") == "master":
        yield report_warning(
            "redis.no-replica",
            what="The master has no replica.",
            why="The sentinels have nothing to put in its place when it dies.",
            fix="Run at least two replicas, and set min-replicas-to-write 1.",
        )
    if replicas != "0" and info.get("min_slaves_good_slaves") is None:
        yield report_warning(
            "redis.min-replicas",
            what=f"The server has {replicas} replicas and takes messages without them (min-replicas-to-write 0).",
            why="What it took while it was cut off is lost when a replica takes over.",
            fix="Set min-replicas-to-write 1, or durability=wait:1.",
        )


async def _check_key(connection: Connection, key: str, settings: RedisSettings) -> Sequence[Finding]:
    kind, name = await connection.call("TYPE", key), repr(redact_line(key, limit=100))
    if kind not in (b"stream", b"none") and isinstance(kind, bytes):
        return [_report_wrong_type(name, kind.decode(errors="replace"))]
    if kind == b"none" and not settings.create:
        return [_report_missing_stream(name)]
    ttl = await connection.call("PTTL", key)
    return [_report_expiry(name)] if isinstance(ttl, int) and ttl > 0 else ()


def _report_wrong_type(name: str, kind: str) -> Finding:
    return report_critical(
        "redis.wrong-type",
        what=f"The key {name} holds a {kind}, not a stream.",
        why="Nothing can be added to it: the destination is out of service.",
        fix="Set another key, or remove it.",
    )


def _report_missing_stream(name: str) -> Finding:
    return report_critical(
        "redis.no-stream",
        what=f"There is no stream {name}, and create=false.",
        why="Nothing can be added to it: the destination is out of service.",
        fix="Create it, for example with XGROUP CREATE … MKSTREAM, or set create=true.",
    )


def _report_expiry(name: str) -> Finding:
    return report_critical(
        "redis.stream-expires",
        what=f"The stream {name} has a time to live.",
        why="It is dropped then, with messages that nobody has read.",
        fix="Take it away with PERSIST.",
    )


def _report_unseen_settings(reply: ErrorReply) -> Finding:
    return report_info(
        "redis.settings-unseen",
        what=f"The server's settings cannot be seen: {redact_line(reply)}.",
        why="Whether it can lose messages is not known.",
        fix="Allow this login CONFIG GET, or look yourself at appendonly, appendfsync and maxmemory-policy.",
    )


def _check_options(settings: RedisSettings) -> Iterator[Finding]:
    sentinels = len(settings.endpoint.hosts)
    if settings.has_sentinels and sentinels < _LEAST_SENTINELS:
        yield report_warning(
            "redis.few-sentinels",
            what=f"The URL names {'one sentinel' if sentinels == 1 else f'{sentinels} sentinels'}.",
            why="While it is away nobody tells where the master is, and no majority can choose another one.",
            fix="Name at least three: redis+sentinel://s1,s2,s3/mymaster.",
        )
    if settings.maxlen is not None:
        yield report_warning(
            "redis.maxlen",
            what=f"The option maxlen is {settings.maxlen}.",
            why="The oldest entries are dropped above it, whether or not anyone has read them.",
            fix="Leave it out, and let the consumers trim what they have handled.",
        )
    if not expand_topics(settings.key, ["any"]):
        yield report_info(
            "redis.streams-unknown",
            what=f"The streams cannot be foreseen: the option key is {settings.key!r}.",
            why="Whether they are in order is seen only when messages are sent.",
            fix="Look at them with TYPE and TTL.",
        )
