"""Chains: all messages with one correlation id, as a tree by what caused them and as a waterfall of times. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from pillarbox.contracts.store import InboxRecord
from pillarbox.message import Kind, Message, State

__all__ = [
    "Arrow",
    "Chain",
    "ChainNode",
    "ChainSummary",
    "Handling",
    "Hop",
    "SeenMessage",
    "SequenceDiagram",
    "build_chain",
    "draw_sequence",
    "place_bars",
    "summarize_chains",
    "walk",
]

_MOST_DEPTH: Final = 64


class SeenMessage(msgspec.Struct, frozen=True):
    """A row of one store."""

    store: str
    message: Message


class Handling(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a consumer received."""

    store: str
    consumer: str
    status: str
    at: datetime
    """Time of the last change: when it was handled, if it is done."""
    attempts: int
    error: str | None
    began_at: datetime | None = None
    """Time at which its handler wrote its first message; None if it wrote none."""


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """The way of a message to one destination: three times, each known or not."""

    store: str
    message: Message
    handlings: Sequence[Handling] = ()

    @property
    def written_at(self) -> datetime:
        return self.message.created_at or self.message.event_time

    @property
    def delivered_at(self) -> datetime | None:
        return self.message.status_at if self.message.state is State.DELIVERED else None

    @property
    def is_stopped(self) -> bool:
        """True where the chain ends because something failed or was closed by a person."""
        return self.message.state in (State.FAILED, State.DISCARDED, State.SKIPPED) or any(
            one.status == "failed" for one in self.handlings
        )


class ChainNode(msgspec.Struct, kw_only=True):
    """One message of a chain, on its way to all its destinations, and what it caused."""

    message_id: str
    hops: Sequence[Hop] = ()
    """None: these stores have not seen the message."""
    children: list[ChainNode] = []

    @property
    def is_seen(self) -> bool:
        return bool(self.hops)

    @property
    def at(self) -> datetime | None:
        return min((hop.written_at for hop in self.hops), default=None)


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """A whole chain."""

    roots: Sequence[ChainNode]
    start: datetime | None
    end: datetime | None
    messages: int
    unseen: int
    """Messages that others name as their cause, and none of the stores has."""


def build_chain(seen: Sequence[SeenMessage], records: Mapping[str, Sequence[InboxRecord]], *, now: datetime) -> Chain:
    """Build the tree of a chain. `records` are the inbox records of each store.

    A message whose cause is not among the rows hangs below a node that no store has seen. Rows are foreign data: a
    message that names itself, or one that it caused, as its cause is a root.
    """
    by_id: dict[str, list[SeenMessage]] = defaultdict(list)
    for one in seen:
        by_id[str(one.message.message_id)].append(one)
    first_writes = _find_first_writes(seen)
    handlings: dict[str, list[Handling]] = defaultdict(list)
    for store, rows in records.items():
        for row in rows:
            began_at = first_writes.get(row.message_id)
            handlings[row.message_id].append(
                Handling(
                    store=store, consumer=row.consumer, status=row.status, at=row.at, attempts=row.attempts,
                    error=row.error, began_at=began_at if began_at is not None and began_at <= row.at else None,
                )
            )  # fmt: skip
    nodes = {
        name: ChainNode(
            message_id=name,
            hops=_build_hops(rows, sorted(handlings[name], key=lambda one: (one.at, one.consumer))),
            children=[],
        )
        for name, rows in by_id.items()
    }
    roots = _link(nodes, {name: rows[0].message.causation_id for name, rows in by_id.items()})
    ends = [at for node in nodes.values() for hop in node.hops for at in _list_times(hop, now)]
    return Chain(
        roots=roots,
        start=min((hop.written_at for node in nodes.values() for hop in node.hops), default=None),
        end=max(ends, default=None),
        messages=len(nodes),
        unseen=sum(not node.is_seen for node in roots),
    )


def _build_hops(rows: Sequence[SeenMessage], handlings: Sequence[Handling]) -> list[Hop]:
    """Give each row its handlings. Which destination a consumer reads is known only if there is a single one."""
    hops = [Hop(store=one.store, message=one.message) for one in sorted(rows, key=lambda one: one.message.id)]
    if len(hops) == 1:
        return [msgspec.structs.replace(hops[0], handlings=handlings)]
    left = list(handlings)
    placed = []
    for hop in hops:
        own = [one for one in left if one.consumer == hop.message.destination]
        left = [one for one in left if one not in own]
        placed.append(msgspec.structs.replace(hop, handlings=own))
    placed[0] = msgspec.structs.replace(placed[0], handlings=[*placed[0].handlings, *left])
    return placed


def _find_first_writes(seen: Sequence[SeenMessage]) -> dict[str, datetime]:
    """Map each message to when the first message that it caused happened: its handler was at work then."""
    first: dict[str, datetime] = {}
    for one in seen:
        cause = one.message.causation_id
        if cause is not None:
            first[cause] = min(first.get(cause, one.message.event_time), one.message.event_time)
    return first


def _link(nodes: dict[str, ChainNode], causes: Mapping[str, str | None]) -> list[ChainNode]:
    roots: list[ChainNode] = []
    unseen: dict[str, ChainNode] = {}
    for name, node in nodes.items():
        cause = causes[name]
        if cause is None or _is_below(cause, name, causes):
            roots.append(node)
        elif cause in nodes:
            nodes[cause].children.append(node)
        else:
            if cause not in unseen:
                unseen[cause] = ChainNode(message_id=cause, hops=(), children=[])
                roots.append(unseen[cause])
            unseen[cause].children.append(node)
    for node in (*nodes.values(), *unseen.values()):
        node.children.sort(key=_sort_key)
    return sorted(roots, key=lambda node: _sort_key(node if node.is_seen else min(node.children, key=_sort_key)))


def _is_below(cause: str, name: str, causes: Mapping[str, str | None]) -> bool:
    """Return whether following the causes from `cause` leads back to `name`."""
    at: str | None = cause
    passed: set[str] = set()
    while at is not None and at not in passed:
        if at == name:
            return True
        passed.add(at)
        at = causes.get(at)
    return False


def _sort_key(node: ChainNode) -> tuple[float, str]:
    return (node.at.timestamp() if node.at else 0.0, node.message_id)


def _list_times(hop: Hop, now: datetime) -> Iterator[datetime]:
    yield hop.written_at
    if hop.delivered_at is not None:
        yield hop.delivered_at
    elif not hop.message.state.is_closed:
        yield now
    elif hop.message.status_at is not None:
        yield hop.message.status_at
    for one in hop.handlings:
        yield one.at


def walk(chain: Chain) -> Iterator[tuple[int, ChainNode]]:
    """Go through a chain from its first message, each with its depth. Deeper ones than anybody can read are cut."""
    stack = [(0, node) for node in reversed(chain.roots)]
    while stack:
        depth, node = stack.pop()
        yield min(depth, _MOST_DEPTH), node
        stack += [(depth + 1, child) for child in reversed(node.children)]


# --- several chains ---


class ChainSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One chain in a list, as far as its messages were read."""

    correlation_id: str
    type: str
    """Of its first message."""
    messages: int
    stores: Sequence[str]
    start: datetime
    end: datetime
    """When its last message was closed; now if one is on its way."""
    is_open: bool
    is_stopped: bool

    @property
    def length(self) -> timedelta:
        return self.end - self.start


def summarize_chains(seen: Sequence[SeenMessage], *, now: datetime) -> list[ChainSummary]:
    """Summarize the chains that messages belong to, the one that began last first."""
    chains: dict[str, list[SeenMessage]] = defaultdict(list)
    for one in seen:
        chains[one.message.correlation_id].append(one)
    summaries = [_summarize(name, own, now) for name, own in chains.items()]
    return sorted(summaries, key=lambda one: (one.start, one.correlation_id), reverse=True)


def _summarize(correlation_id: str, seen: Sequence[SeenMessage], now: datetime) -> ChainSummary:
    hops = sorted((Hop(store=one.store, message=one.message) for one in seen), key=lambda hop: hop.written_at)
    start = hops[0].written_at
    return ChainSummary(
        correlation_id=correlation_id,
        type=hops[0].message.type,
        messages=len({hop.message.message_id for hop in hops}),
        stores=sorted({hop.store for hop in hops}),
        start=start,
        end=max(max(_list_times(hop, now)) for hop in hops),
        is_open=any(not hop.message.state.is_closed for hop in hops),
        is_stopped=any(hop.is_stopped for hop in hops),
    )


# --- the waterfall ---


class Bar(msgspec.Struct, frozen=True):
    """One segment of the waterfall, in parts of its width from 0 to 1."""

    kind: str
    """`outbox`, `transport` or `handling`."""
    x: float
    width: float
    seconds: float


def place_bars(hop: Hop, chain: Chain, *, now: datetime) -> list[Bar]:
    """Place the segments of a hop: wait in the outbox, transport, handling.

    The clocks of stores may differ: no segment is shorter than nothing.
    """
    if chain.start is None or chain.end is None:
        return []
    whole = max((chain.end - chain.start).total_seconds(), 0.001)

    def place(kind: str, start: datetime, end: datetime) -> Bar:
        seconds = max((end - start).total_seconds(), 0.0)
        x = min(max((start - chain.start).total_seconds() / whole, 0.0), 1.0)  # type: ignore[operator]
        return Bar(kind, round(x, 5), round(min(seconds / whole, 1 - x), 5), seconds)

    left_at = hop.delivered_at or (hop.message.status_at if hop.message.state.is_closed else now) or now
    bars = [place("outbox", hop.written_at, left_at)]
    if hop.delivered_at is not None and hop.handlings:
        first = hop.handlings[0]
        began_at = first.began_at or first.at
        bars.append(place("transport", hop.delivered_at, began_at))
        if first.began_at is not None:
            bars.append(place("handling", first.began_at, first.at))
    return bars


# --- the sequence diagram ---

_COLUMN: Final = 190
_ROW: Final = 46
_HEAD: Final = 44
_MOST_COLUMNS: Final = 12
_LONGEST_NAME: Final = 22


class Arrow(msgspec.Struct, frozen=True, kw_only=True):
    """A message on its way from one participant to another, in the units of the drawing."""

    x1: int
    x2: int
    y: int
    label: str
    detail: str
    """When it was written, counted from the first message, and how it ended."""
    href: tuple[str, int]
    """The store and the id of the message."""
    is_command: bool
    is_stopped: bool
    is_open: bool
    """It is still on its way."""

    @property
    def middle(self) -> int:
        return (self.x1 + self.x2) // 2


class SequenceDiagram(msgspec.Struct, frozen=True, kw_only=True):
    """Participants from left to right, and arrows from top to bottom."""

    width: int
    height: int
    participants: Sequence[tuple[int, str]]
    """The middle of each column, and its name."""
    arrows: Sequence[Arrow]
    left_out: int
    """Messages between participants for which there is no room."""


def draw_sequence(chain: Chain) -> SequenceDiagram:
    """Draw who sent what to whom, in the order in which it was written.

    A participant is the source of messages. Where a consumer wrote messages of its own, it is one with their source;
    where it wrote none it goes by its own name, and what nobody received by the name of the destination.
    """
    hops = [(hop, node) for _, node in walk(chain) for hop in node.hops]
    hops.sort(key=lambda one: (one[0].written_at, one[0].message.id))
    columns: dict[str, int] = {}
    arrows: list[Arrow] = []
    left_out = 0
    for hop, node in hops:
        for target in _list_targets(hop, node):
            places = [columns.setdefault(name, len(columns)) for name in (hop.message.source, target)]
            if max(places) >= _MOST_COLUMNS:
                left_out += 1
                continue
            arrows.append(_draw_arrow(hop, chain, places[0], places[1], row=len(arrows)))
    names = list(columns)[:_MOST_COLUMNS]
    return SequenceDiagram(
        width=max(len(names), 1) * _COLUMN,
        height=_HEAD + max(len(arrows), 1) * _ROW + 24,
        participants=[(_to_x(place), _shorten(name)) for place, name in enumerate(names)],
        arrows=arrows,
        left_out=left_out,
    )


def _list_targets(hop: Hop, node: ChainNode) -> list[str]:
    written = {one.message.source for child in node.children for one in child.hops}
    if hop.handlings and len(hop.handlings) == 1 and len(written) == 1 and len(node.hops) == 1:
        return [next(iter(written))]
    return [one.consumer for one in hop.handlings] or [hop.message.destination]


def _draw_arrow(hop: Hop, chain: Chain, start: int, end: int, *, row: int) -> Arrow:
    after = (hop.written_at - (chain.start or hop.written_at)).total_seconds()
    state = "held" if hop.message.state is State.FAILED and hop.message.waits is not None else hop.message.state.value
    x1, x2 = _to_x(start), _to_x(end)
    if start == end:
        x2 = x1 + _COLUMN // 3
    return Arrow(
        x1=x1, x2=x2, y=_HEAD + row * _ROW + 30, label=_shorten(hop.message.type),
        detail=f"{after:+.2f} s, {state}", href=(hop.store, hop.message.id),
        is_command=hop.message.kind is Kind.COMMAND, is_stopped=hop.is_stopped,
        is_open=not hop.message.state.is_closed,
    )  # fmt: skip


def _to_x(place: int) -> int:
    return place * _COLUMN + _COLUMN // 2


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"
