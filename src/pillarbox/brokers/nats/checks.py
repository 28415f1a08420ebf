"""Checks of the streams: settings that could lose messages."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from pillarbox.brokers.checks import expand_topics, report_critical, report_info, report_warning, sort_findings
from pillarbox.brokers.nats.settings import NatsSettings
from pillarbox.brokers.nats.streams import (
    ApiUnavailable,
    JetStreamOff,
    StreamConfig,
    find_streams,
    list_consumers,
    read_stream,
)
from pillarbox.contracts.finding import Finding

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["check_permissions", "check_stream", "check_streams"]

_DUPLICATE_WINDOW: Final = timedelta(minutes=2)


def check_permissions(subjects: Sequence[str], denied: Collection[str] | None) -> Iterator[Finding]:
    """Yield findings about the right to publish; `denied` is None where the server did not say."""
    if denied is None:
        yield report_info(
            "nats.permissions-unseen",
            what="Whether this login may publish cannot be seen: the server does not say.",
            why="A subject that it may not publish to takes no message: they wait in the outbox.",
            fix="Look at the permissions of the user in the configuration of the server.",
        )
        return
    for subject in subjects:
        if subject in denied:
            yield report_critical(
                "nats.no-permission",
                what=f"This login may not publish to {subject!r}.",
                why="The server refuses every message for it: they wait in the outbox.",
                fix="Allow the user to publish to it in the permissions of the server, or use another login.",
            )


async def check_streams(client: Client, settings: NatsSettings, *, topics: Sequence[str]) -> Sequence[Finding]:
    """Return findings about the streams that take messages of these topics, worst first."""
    findings: list[Finding] = []
    seconds = settings.timeout.total_seconds()
    try:
        streams = {settings.stream} if settings.stream else set()
        for subject in expand_topics(settings.subject, topics):
            names = await find_streams(client, subject, seconds=seconds)
            streams.update(names)
            findings += _check_subject(subject, names, expected=settings.stream)
        for name in sorted(streams):
            findings += await _check_stream_by_name(client, name, seconds=seconds)
    except JetStreamOff:
        findings.append(
            report_critical(
                "nats.no-jetstream",
                what="JetStream is not enabled, on the server or for this account.",
                why="Nobody keeps or acknowledges what is published: the destination is out of service.",
                fix="Add jetstream {} to the configuration of the server, or enable it for the account.",
            )
        )
    except ApiUnavailable as error:
        findings.append(_report_unseen_streams(str(error)))
    findings += _list_unknowns(settings)
    return sort_findings(findings)


def _check_subject(subject: str, names: Sequence[str], *, expected: str | None) -> Iterator[Finding]:
    if not names:
        yield report_critical(
            "nats.no-stream",
            what=f"No stream has the subject {subject!r}.",
            why="Nobody keeps what is published to it: its messages wait in the outbox.",
            fix="Create a stream with this subject, or set stream and declare=true.",
        )
    elif expected is not None and expected not in names:
        yield report_critical(
            "nats.other-stream",
            what=f"The stream {names[0]} has the subject {subject!r}, and the option stream says {expected}.",
            why="The server refuses every message: the destination is out of service.",
            fix="Correct the option stream, or give the subject to that stream.",
        )


async def _check_stream_by_name(client: Client, name: str, *, seconds: float) -> Sequence[Finding]:
    info = await read_stream(client, name, seconds=seconds)
    if info is None:
        return ()  # the subjects without a stream have a finding already
    findings = list(check_stream(info.config))
    if info.config.retention == "interest":
        consumers = await list_consumers(client, name, seconds=seconds)
        findings += _check_interest(name, consumers=info.state.consumer_count, has_durable=consumers.has_durable)
    return findings


def _check_interest(name: str, *, consumers: int, has_durable: bool) -> Iterator[Finding]:
    if has_durable:
        return
    report = report_warning if consumers else report_critical
    yield report(
        "nats.interest-without-consumers",
        what=f"The stream {name} keeps only what a consumer wants, and has no durable consumer.",
        why="It acknowledges a message and drops it at once when nobody is there.",
        fix="Create the durable consumers first, or set its retention to limits.",
    )


def check_stream(config: StreamConfig) -> Iterator[Finding]:
    """Yield findings about the settings of one stream."""
    name = f"The stream {config.name}"
    yield from _check_refusals(config, name)
    yield from _check_retention(config, name)
    if config.storage != "file":
        yield report_warning(
            "nats.memory-storage",
            what=f"{name} is kept in memory.",
            why="It is gone when its servers restart.",
            fix="Create it anew with storage=file.",
        )
    if config.num_replicas < 3:
        yield report_warning(
            "nats.few-replicas",
            what=f"{name} has {config.num_replicas} of the 3 copies that survive the loss of a server.",
            why="An acknowledged message is lost with the disk that has it.",
            fix="Set its replicas to 3 in a cluster; accept it on a single server.",
        )
    if timedelta(microseconds=config.duplicate_window / 1_000) < _DUPLICATE_WINDOW:
        yield report_info(
            "nats.short-duplicate-window",
            what=f"{name} recognises repeats for less than 2 minutes.",
            why="A message whose acknowledgement was lost is sent again, and stored again if that is later.",
            fix="Set its duplicate window to 2 minutes or more; consumers should use the inbox in any case.",
        )


def _check_refusals(config: StreamConfig, name: str) -> Iterator[Finding]:
    if config.no_ack:
        yield report_critical(
            "nats.no-ack",
            what=f"{name} does not acknowledge.",
            why="Every message is sent again and again, and none counts as delivered.",
            fix="Set its no_ack to false.",
        )
    if config.sealed:
        yield report_critical(
            "nats.sealed",
            what=f"{name} is sealed.",
            why="It takes no message any more: the destination is out of service.",
            fix="Give the subject to another stream.",
        )


def _check_retention(config: StreamConfig, name: str) -> Iterator[Finding]:
    limits = [limit for limit in ("max_msgs", "max_bytes", "max_msgs_per_subject") if getattr(config, limit) > 0]
    if config.discard == "old" and limits:
        yield report_critical(
            "nats.discard-old",
            what=f"{name} has {' and '.join(limits)} and discards the oldest when it is full.",
            why="Acknowledged messages are dropped, whether or not anyone has read them.",
            fix="Set its discard policy to new: then it refuses, and the messages wait in the outbox.",
        )
    if config.max_age:
        yield report_warning(
            "nats.max-age",
            what=f"{name} drops messages after {timedelta(microseconds=config.max_age / 1_000)}.",
            why="A consumer that is away for longer never sees them.",
            fix="Raise max_age above the longest outage of a consumer that you want to survive.",
        )
    if config.allow_rollup_hdrs:
        yield report_info(
            "nats.rollup",
            what=f"{name} allows roll-ups.",
            why="Another publisher can replace all earlier messages of a subject by one with a Nats-Rollup header.",
            fix="Switch allow_rollup off unless it is used on purpose.",
        )


def _report_unseen_streams(why: str) -> Finding:
    return report_info(
        "nats.streams-unseen",
        what=f"The settings of the streams cannot be seen: {why}.",
        why="Whether they can lose messages is not known.",
        fix="Let this login publish to $JS.API.STREAM.NAMES, $JS.API.STREAM.INFO.* and $JS.API.CONSUMER.LIST.*.",
    )


def _list_unknowns(settings: NatsSettings) -> Iterator[Finding]:
    yield report_info(
        "nats.sync-interval-unseen",
        what="How often the servers write to disk cannot be seen from here; the default is every 2 minutes.",
        why="What was acknowledged since then is lost if the machines of all copies lose power.",
        fix="Set jetstream { sync_interval: always } on the servers where that matters.",
    )
    if not expand_topics(settings.subject, ["any"]):
        yield report_info(
            "nats.subjects-unknown",
            what=f"The subjects cannot be foreseen: the option subject is {settings.subject!r}.",
            why="Which streams take the messages is seen only when they are sent.",
            fix="Look at those streams with `nats stream info`.",
        )
