"""How queues and topics are looked at, one by one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from pillarbox.errors import MessageRejected, TransportUnavailable
from pillarbox.protocols import Finding, Severity
from pillarbox.transports.aws.client import NoAnswer, Refused
from pillarbox.transports.aws.names import named_after
from pillarbox.transports.aws.verdicts import Verdict, Words, told

__all__ = ["Inspection", "each"]


class Inspection(msgspec.Struct, frozen=True):
    """What is to be looked at."""

    template: str
    most: int
    """Characters of a name."""
    topics: Sequence[str]
    words: Words


async def each(
    inspection: Inspection, service: str, look: Callable[[str], Awaitable[Sequence[Finding]]]
) -> Sequence[Finding]:
    """The findings of every place that the topics lead to, worst first."""
    found: list[Finding] = []
    places: dict[str, None] = {}
    for topic in inspection.topics:
        try:
            place = named_after(inspection.template, topic, most=inspection.most)
        except MessageRejected as error:
            found.append(_unusable(service, topic, error))
            continue
        if place is not None:
            places[place] = None
    if not places and not found:
        found.append(_unknown(service, inspection.words))
    for place in places:
        found += await _looked_at(place, service, inspection.words, look)
    return sorted(found, key=lambda finding: list(Severity).index(finding.severity), reverse=True)


async def _looked_at(
    place: str, service: str, words: Words, look: Callable[[str], Awaitable[Sequence[Finding]]]
) -> Sequence[Finding]:
    try:
        return await look(place)
    except NoAnswer as error:
        raise TransportUnavailable(str(error)) from error
    except Refused as error:
        if error.why.verdict is Verdict.MISSING:
            return [_missing(service, place, words)]
        if error.why.verdict is Verdict.DENIED:
            return [_unseen(service, place, words)]
        raise TransportUnavailable(told(error.why, place, words)) from error


def _missing(service: str, place: str, words: Words) -> Finding:
    return Finding(
        code=f"{service}.{words.what}-missing",
        severity=Severity.CRITICAL,
        what=f"The {words.what} {place!r} does not exist.",
        why="Its messages cannot be delivered.",
        fix="Create it, or set declare=true.",
    )


def _unusable(service: str, topic: str, error: MessageRejected) -> Finding:
    return Finding(
        code=f"{service}.name-unusable",
        severity=Severity.CRITICAL,
        what=f"Messages of the topic {topic!r} have nowhere to go. {error}",
        why="They are rejected.",
        fix="Change the template, or the topic.",
    )


def _unseen(service: str, place: str, words: Words) -> Finding:
    return Finding(
        code=f"{service}.settings-unseen",
        severity=Severity.INFO,
        what=f"This login may not see the settings of the {words.what} {place!r}.",
        why="Whether they can lose messages is not known.",
        fix=f"Allow {service}:Get{words.what.capitalize()}Attributes, or ask somebody who may.",
    )


def _unknown(service: str, words: Words) -> Finding:
    return Finding(
        code=f"{service}.{words.what}s-unknown",
        severity=Severity.INFO,
        what=f"Which {words.what}s messages go to is known only when they come.",
        why="The template needs more than the topic, or no topic is known yet; nothing could be looked at.",
        fix=f"Look at the {words.what}s yourself: retention, dead letters, encryption.",
    )
