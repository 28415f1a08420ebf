"""What is set on the streams that could lose messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from pillarbox.protocols import Finding, Severity
from pillarbox.transports.nats.settings import NatsSettings
from pillarbox.transports.nats.streams import StreamConfig, Unseen, consumers_of, stream_info, streams_of

if TYPE_CHECKING:
    from pillarbox.transports.nats.client import Client

__all__ = ["about_stream", "inspected"]

_WINDOW: Final = timedelta(minutes=2)


async def inspected(client: Client, settings: NatsSettings, *, topics: Sequence[str]) -> Sequence[Finding]:
    """Findings, worst first."""
    found: dict[tuple[str, str], Finding] = {}
    seconds = settings.timeout.total_seconds()
    try:
        streams = {settings.stream} if settings.stream else set()
        for subject in _subjects(settings.subject, topics):
            names = await streams_of(client, subject, seconds=seconds)
            streams.update(names)
            _add(found, _about_subject(subject, names, expected=settings.stream))
        for name in sorted(streams):
            _add(found, await _about(client, name, seconds=seconds))
    except Unseen as error:
        _add(found, [_unseen(str(error))])
    _add(found, _always(settings))
    return sorted(found.values(), key=lambda finding: list(Severity).index(finding.severity), reverse=True)


def _subjects(template: str, topics: Sequence[str]) -> Sequence[str]:
    """Where messages of these topics go, as far as the topic alone decides it."""
    if "{" in template.replace("{topic}", ""):
        return ()
    if "{topic}" not in template:
        return [template]
    return [template.replace("{topic}", topic) for topic in topics]


def _add(found: dict[tuple[str, str], Finding], findings: Iterable[Finding]) -> None:
    found.update({(finding.code, finding.what): finding for finding in findings})


def _about_subject(subject: str, names: Sequence[str], *, expected: str | None) -> Sequence[Finding]:
    if not names:
        return [
            Finding(
                code="nats.no-stream",
                severity=Severity.CRITICAL,
                what=f"No stream has the subject {subject!r}.",
                why="Nobody keeps what is published to it: the destination is out of service.",
                fix="Create a stream with this subject, or set stream and declare=true.",
            )
        ]
    if expected is not None and expected not in names:
        return [
            Finding(
                code="nats.other-stream",
                severity=Severity.CRITICAL,
                what=f"The stream {names[0]} has the subject {subject!r}, and the option stream says {expected}.",
                why="The server refuses every message: the destination is out of service.",
                fix="Correct the option stream, or give the subject to that stream.",
            )
        ]
    return ()


async def _about(client: Client, name: str, *, seconds: float) -> Sequence[Finding]:
    info = await stream_info(client, name, seconds=seconds)
    if info is None:
        return ()  # the subjects that lead nowhere are told already
    findings = list(about_stream(info.config))
    if info.config.retention == "interest":
        consumers = await consumers_of(client, name, seconds=seconds)
        findings += _about_interest(name, consumers=info.state.consumer_count, has_durable=consumers.has_durable)
    return findings


def _about_interest(name: str, *, consumers: int, has_durable: bool) -> Iterator[Finding]:
    if has_durable:
        return
    yield Finding(
        code="nats.interest-without-consumers",
        severity=Severity.WARNING if consumers else Severity.CRITICAL,
        what=f"The stream {name} keeps only what a consumer wants, and has no durable consumer.",
        why="It acknowledges a message and drops it at once when nobody is there.",
        fix="Create the durable consumers first, or set its retention to limits.",
    )


def about_stream(config: StreamConfig) -> Iterator[Finding]:
    """What of a stream's settings loses messages."""
    name = f"The stream {config.name}"
    yield from _about_refusing(config, name)
    yield from _about_dropping(config, name)
    if config.storage != "file":
        yield Finding(
            code="nats.memory-storage",
            severity=Severity.WARNING,
            what=f"{name} is kept in memory.",
            why="It is gone when its servers restart.",
            fix="Create it anew with storage=file.",
        )
    if config.num_replicas < 3:
        yield Finding(
            code="nats.few-replicas",
            severity=Severity.WARNING,
            what=f"{name} has {config.num_replicas} of the 3 copies that survive the loss of a server.",
            why="An acknowledged message is lost with the disk that has it.",
            fix="Set its replicas to 3 in a cluster; accept it on a single server.",
        )
    if timedelta(microseconds=config.duplicate_window / 1_000) < _WINDOW:
        yield Finding(
            code="nats.short-duplicate-window",
            severity=Severity.INFO,
            what=f"{name} recognises repeats for less than 2 minutes.",
            why="A message whose acknowledgement was lost is sent again, and stored again if that is later.",
            fix="Set its duplicate window to 2 minutes or more; consumers should use the inbox in any case.",
        )


def _about_refusing(config: StreamConfig, name: str) -> Iterator[Finding]:
    if config.no_ack:
        yield Finding(
            code="nats.no-ack",
            severity=Severity.CRITICAL,
            what=f"{name} does not acknowledge.",
            why="Every message is sent again and again, and none counts as delivered.",
            fix="Set its no_ack to false.",
        )
    if config.sealed:
        yield Finding(
            code="nats.sealed",
            severity=Severity.CRITICAL,
            what=f"{name} is sealed.",
            why="It takes no message any more: the destination is out of service.",
            fix="Give the subject to another stream.",
        )


def _about_dropping(config: StreamConfig, name: str) -> Iterator[Finding]:
    limits = [limit for limit in ("max_msgs", "max_bytes", "max_msgs_per_subject") if getattr(config, limit) > 0]
    if config.discard == "old" and limits:
        yield Finding(
            code="nats.discard-old",
            severity=Severity.CRITICAL,
            what=f"{name} has {' and '.join(limits)} and discards the oldest when it is full.",
            why="Acknowledged messages are dropped, whether or not anyone has read them.",
            fix="Set its discard policy to new: then it refuses, and the messages wait in the outbox.",
        )
    if config.max_age:
        yield Finding(
            code="nats.max-age",
            severity=Severity.WARNING,
            what=f"{name} drops messages after {timedelta(microseconds=config.max_age / 1_000)}.",
            why="A consumer that is away for longer never sees them.",
            fix="Raise max_age above the longest outage of a consumer that you want to survive.",
        )
    if config.allow_rollup_hdrs:
        yield Finding(
            code="nats.rollup",
            severity=Severity.INFO,
            what=f"{name} allows roll-ups.",
            why="Another publisher can replace all earlier messages of a subject by one with a Nats-Rollup header.",
            fix="Switch allow_rollup off unless it is used on purpose.",
        )


def _unseen(why: str) -> Finding:
    return Finding(
        code="nats.streams-unseen",
        severity=Severity.INFO,
        what=f"The settings of the streams cannot be seen: {why}.",
        why="Whether they can lose messages is not known.",
        fix="Let this login publish to $JS.API.STREAM.NAMES, $JS.API.STREAM.INFO.* and $JS.API.CONSUMER.LIST.*.",
    )


def _always(settings: NatsSettings) -> Iterator[Finding]:
    yield Finding(
        code="nats.sync-interval-unseen",
        severity=Severity.INFO,
        what="How often the servers write to disk cannot be seen from here; the default is every 2 minutes.",
        why="What was acknowledged since then is lost if the machines of all copies lose power.",
        fix="Set jetstream { sync_interval: always } on the servers where that matters.",
    )
    if not _subjects(settings.subject, ["any"]):
        yield Finding(
            code="nats.subjects-unknown",
            severity=Severity.INFO,
            what=f"The subjects cannot be foreseen: the option subject is {settings.subject!r}.",
            why="Which streams take the messages is seen only when they are sent.",
            fix="Look at those streams with `nats stream info`.",
        )
