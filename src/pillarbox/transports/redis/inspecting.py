"""What is set on the server that could lose messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pillarbox.protocols import Finding, Severity
from pillarbox.transports.redaction import one_line
from pillarbox.transports.redis.link import Link
from pillarbox.transports.redis.settings import Durability, RedisSettings
from pillarbox.transports.redis.verdicts import Refusal

__all__ = ["about_role", "about_server", "inspected"]

_SETTINGS: Final = (
    "appendonly",
    "appendfsync",
    "save",
    "maxmemory",
    "maxmemory-policy",
    "min-replicas-to-write",
)


async def inspected(link: Link, settings: RedisSettings, *, topics: Sequence[str]) -> Sequence[Finding]:
    """Findings, worst first."""
    found: list[Finding] = []
    values = await _values(link)
    found += [_unseen(values)] if isinstance(values, Refusal) else about_server(values, settings.wanted)
    found += about_role(await _lines(link))
    for key in _keys(settings.key, topics):
        found += await _about_key(link, key, settings)
    found += _about_options(settings)
    return sorted(found, key=lambda finding: list(Severity).index(finding.severity), reverse=True)


def _keys(template: str, topics: Sequence[str]) -> Sequence[str]:
    """The streams of these topics, as far as the topic alone decides it."""
    if "{" in template.replace("{topic}", ""):
        return ()
    return [template.replace("{topic}", topic) for topic in topics] if "{topic}" in template else [template]


async def _values(link: Link) -> Mapping[str, str] | Refusal:
    values: dict[str, str] = {}
    for name in _SETTINGS:  # one by one: Redis 6 takes only one
        reply = await link.ask("CONFIG", "GET", name)
        if isinstance(reply, Refusal):
            return reply
        if isinstance(reply, list) and len(reply) == 2:
            values[name] = bytes(reply[1]).decode(errors="replace")
    return values


async def _lines(link: Link) -> Mapping[str, str]:
    reply = await link.ask("INFO", "replication")
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else ""
    pairs = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def about_server(values: Mapping[str, str], wanted: Durability) -> Iterator[Finding]:
    """What of a server's settings loses messages, unless more is wanted than that it has them."""
    policy = values.get("maxmemory-policy", "noeviction")
    if values.get("maxmemory", "0") != "0" and policy.startswith("allkeys"):
        yield Finding(
            code="redis.eviction",
            severity=Severity.CRITICAL,
            what=f"The server removes keys when its memory is full (maxmemory-policy {policy}).",
            why="A whole stream is dropped, with messages that nobody has read.",
            fix="Set maxmemory-policy noeviction: then it refuses, and the messages wait in the outbox.",
        )
    if values.get("appendonly") == "yes":
        yield from _about_syncing(values.get("appendfsync", ""), wanted)
    elif values.get("save"):
        yield Finding(
            code="redis.snapshots-only",
            severity=Severity.WARNING,
            what="The server writes snapshots and no append-only file.",
            why="What was added since the last snapshot, often minutes, is lost when it dies.",
            fix="Set appendonly yes.",
        )
    elif "appendonly" in values:
        yield Finding(
            code="redis.no-persistence",
            severity=Severity.WARNING,
            what="The server writes nothing to disk (appendonly no, no save).",
            why="All streams are gone when it restarts.",
            fix="Set appendonly yes.",
        )


def _about_syncing(appendfsync: str, wanted: Durability) -> Iterator[Finding]:
    if appendfsync == "no":
        yield Finding(
            code="redis.appendfsync-no",
            severity=Severity.WARNING,
            what="The server leaves it to the system when to write to disk (appendfsync no).",
            why="What was added in the last half minute or so is lost when the machine loses power.",
            fix="Set appendfsync always or everysec, or durability=waitaof.",
        )
    if appendfsync == "everysec" and not wanted.is_synced:
        yield Finding(
            code="redis.appendfsync-everysec",
            severity=Severity.WARNING,
            what="The server writes to disk every second (appendfsync everysec).",
            why="What was added in the last second or two is lost when the machine loses power, or when the server is "
            "killed while its disk is slow: it acknowledges before it writes.",
            fix="Set durability=waitaof (Redis 7.2, Valkey), or appendfsync always.",
        )


def about_role(lines: Mapping[str, str]) -> Iterator[Finding]:
    """What of a server's place among others loses messages."""
    if lines.get("role") == "slave":
        yield Finding(
            code="redis.replica",
            severity=Severity.CRITICAL,
            what="The server is a replica.",
            why="It takes no message: the destination is out of service.",
            fix="Put the master into the URL.",
        )
    replicas = lines.get("connected_slaves", "0")
    if replicas != "0" and lines.get("min_slaves_good_slaves") is None:
        yield Finding(
            code="redis.min-replicas",
            severity=Severity.WARNING,
            what=f"The server has {replicas} replicas and takes messages without them (min-replicas-to-write 0).",
            why="What it took while it was cut off is lost when a replica takes over.",
            fix="Set min-replicas-to-write 1, or durability=wait:1.",
        )


async def _about_key(link: Link, key: str, settings: RedisSettings) -> Sequence[Finding]:
    kind, shown = await link.ask("TYPE", key), repr(one_line(key, limit=100))
    if kind not in (b"stream", b"none") and isinstance(kind, bytes):
        return [_wrong_type(shown, kind.decode(errors="replace"))]
    if kind == b"none" and not settings.create:
        return [_missing(shown)]
    left = await link.ask("PTTL", key)
    return [_expires(shown)] if isinstance(left, int) and left > 0 else ()


def _wrong_type(shown: str, kind: str) -> Finding:
    return Finding(
        code="redis.wrong-type",
        severity=Severity.CRITICAL,
        what=f"The key {shown} holds a {kind}, not a stream.",
        why="Nothing can be added to it: the destination is out of service.",
        fix="Set another key, or remove it.",
    )


def _missing(shown: str) -> Finding:
    return Finding(
        code="redis.no-stream",
        severity=Severity.CRITICAL,
        what=f"There is no stream {shown}, and create=false.",
        why="Nothing can be added to it: the destination is out of service.",
        fix="Create it, for example with XGROUP CREATE … MKSTREAM, or set create=true.",
    )


def _expires(shown: str) -> Finding:
    return Finding(
        code="redis.stream-expires",
        severity=Severity.CRITICAL,
        what=f"The stream {shown} has a time to live.",
        why="It is dropped then, with messages that nobody has read.",
        fix="Take it away with PERSIST.",
    )


def _unseen(refusal: Refusal) -> Finding:
    return Finding(
        code="redis.settings-unseen",
        severity=Severity.INFO,
        what=f"The server's settings cannot be seen: {one_line(refusal)}.",
        why="Whether it can lose messages is not known.",
        fix="Allow this login CONFIG GET, or look yourself at appendonly, appendfsync and maxmemory-policy.",
    )


def _about_options(settings: RedisSettings) -> Iterator[Finding]:
    if settings.maxlen is not None:
        yield Finding(
            code="redis.maxlen",
            severity=Severity.WARNING,
            what=f"The option maxlen is {settings.maxlen}.",
            why="The oldest entries are dropped above it, whether or not anyone has read them.",
            fix="Leave it out, and let the consumers trim what they have handled.",
        )
    if not _keys(settings.key, ["any"]):
        yield Finding(
            code="redis.streams-unknown",
            severity=Severity.INFO,
            what=f"The streams cannot be foreseen: the option key is {settings.key!r}.",
            why="Whether they are in order is seen only when messages are sent.",
            fix="Look at them with TYPE and TTL.",
        )
