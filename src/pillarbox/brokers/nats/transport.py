"""NATS JetStream: messages to a stream, many at once, each acknowledged on a reply subject of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self, TypeVar

import msgspec

from pillarbox.brokers.checks import expand_topics, sort_findings
from pillarbox.brokers.errors import connection_broken_error
from pillarbox.brokers.nats.checks import check_permissions, check_streams
from pillarbox.brokers.nats.connection import Server, close_client, connect_client
from pillarbox.brokers.nats.encoding import BATCH_HEADERS, SUBJECT_RULES, EncodedMessage, Encoder, build_batch_frame
from pillarbox.brokers.nats.errors import (
    BatchRefused,
    BatchStarted,
    CommitReply,
    FirstStored,
    PermissionViolation,
    StartReply,
    describe_error,
    parse_permission_violation,
    read_ack,
    read_batch_commit,
    read_batch_start,
)
from pillarbox.brokers.nats.settings import NAME, NatsSettings, nats_settings
from pillarbox.brokers.nats.streams import declare_stream
from pillarbox.brokers.reconnecting import ReconnectingConnection
from pillarbox.brokers.send_batch import (
    DELIVERED,
    UNSENT,
    Answer,
    NotAnswered,
    SendBatch,
    collect_outcomes,
    encode_each,
    find_runs,
    stop_runs,
)
from pillarbox.brokers.settings import TransportUrl
from pillarbox.brokers.templates import compile_template, describe_address
from pillarbox.contracts.finding import Finding
from pillarbox.contracts.transport import Outcome, TransportFeatures
from pillarbox.errors import TransportUnavailable
from pillarbox.hosts import connect_first
from pillarbox.message import Message
from pillarbox.progress import StallTimeout
from pillarbox.redaction import redact_line

if TYPE_CHECKING:
    from nats.aio.msg import Msg

__all__ = ["AtomicBatch", "NatsTransport", "PendingBatches", "PublishBatch", "Publisher", "Window", "nats_transport"]

_MAX_BYTES_IN_FLIGHT: Final = 32 * 1024 * 1024
"""On top of the limit of messages."""
_REFUSED_REPLY: Final = "_R_.pillarbox"
"""A reply subject that servers keep for themselves: they refuse every message of a client that has it."""
_PLAIN_SUBJECT: Final = re.compile(r"[^\s\x00-\x1f\x7f*>]+")
"""Subject that can be published to. Another one is refused with the message."""
_FIRST_WITH_BATCHES: Final = (2, 12)
"""Version of the first server with atomic batches."""
_MAX_ROUNDS_SECONDS: Final = 0.1
"""Time for which runs go message by message. What is left then is unsent: what was delivered should be recorded."""
_MAX_BATCH: Final = 500
"""Messages of an atomic batch. A server takes 1,000."""
_MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
_WRITE_SIZE: Final = 256 * 1024
"""Bytes handed to the socket at a time, roughly."""


R = TypeVar("R")


class NatsTransport:
    """Publishes messages as CloudEvents to JetStream.

    Delivered means that a stream has stored the message, on a majority of its servers if it has several. Secrets are
    read when this is built.
    """

    def __init__(self, settings: NatsSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        self.features = TransportFeatures(name=NAME, addresses="{" in settings.subject, ping_is_witness=True, runs=True)
        self.settings = settings
        self._server = Server.from_settings(settings, environ=environ)
        subject = compile_template(settings.subject, option="subject", transport=NAME, rules=SUBJECT_RULES)
        self._encoder = Encoder(subject=subject, stream=settings.stream, inbox=settings.inbox, mode=settings.mode)
        self._publisher = ReconnectingConnection(self._connect, owner="nats transport")

    def __repr__(self) -> str:
        return f"NatsTransport({self.settings!r})"

    async def open(self) -> None:
        await self._publisher.open()

    async def close(self) -> None:
        await self._publisher.close()

    async def ping(self) -> None:
        """Make a round trip to the server, and declare the stream again, in case somebody removed it."""
        publisher = await self._get_publisher()
        await publisher.check()
        if self.settings.declare:
            await declare_stream(publisher.client, self.settings, where=self._server.where)

    def get_address(self, message: Message) -> str | None:
        return describe_address(message, subject=self._encoder.subject)

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        if not messages:
            return []
        publisher = await self._get_publisher()
        limit, encode = publisher.max_payload, self._encoder.encode
        encoded = encode_each(messages, lambda message: encode(message, limit=limit), broker="NATS")
        runs = find_runs(messages)
        outcomes = await (_publish_with_runs(publisher, encoded, runs) if runs else publisher.publish(encoded))
        if self.settings.declare and any(outcome.missing for outcome in outcomes):
            # Somebody removed the stream. What was refused is sent again, and finds it.
            with contextlib.suppress(TransportUnavailable):
                await declare_stream(publisher.client, self.settings, where=self._server.where)
        return outcomes

    async def inspect(self, *, topics: Sequence[str]) -> Sequence[Finding]:
        publisher = await self._get_publisher()
        subjects = expand_topics(self.settings.subject, topics)
        findings = check_permissions(subjects, await publisher.find_denied(subjects))
        return sort_findings([*findings, *await check_streams(publisher.client, self.settings, topics=topics)])

    async def _get_publisher(self) -> Publisher:
        publisher = await self._publisher.get()
        if publisher.is_doubted:
            with contextlib.suppress(TransportUnavailable):
                await publisher.check()
            publisher = await self._publisher.get()
        return publisher

    async def _connect(self) -> Publisher:
        publisher = await Publisher.connect(self._server, window=self.settings.window)
        try:
            if self.settings.declare:
                await declare_stream(publisher.client, self.settings, where=self._server.where)
        except BaseException:
            await publisher.close()
            raise
        self.features = msgspec.structs.replace(self.features, max_payload=publisher.max_payload)
        return publisher


def nats_transport(url: TransportUrl) -> NatsTransport:
    """Build the transport for `nats:`."""
    return NatsTransport(nats_settings(url))


async def _publish_with_runs(
    publisher: Publisher, encoded: list[EncodedMessage | Outcome], runs: Sequence[Sequence[int]]
) -> list[Outcome]:
    """Publish single messages, and beside them the runs that begin with one subject together."""
    stop_runs(runs, encoded)
    in_runs: set[int] = set()
    by_subject: dict[str, list[tuple[list[int], list[EncodedMessage]]]] = {}
    for run in runs:
        pairs = [(index, message) for index in run if isinstance(message := encoded[index], EncodedMessage)]
        if pairs:
            indexes, messages = [index for index, _ in pairs], [message for _, message in pairs]
            in_runs.update(indexes)
            by_subject.setdefault(messages[0].subject, []).append((indexes, messages))
    parts = [
        ([index for indexes, _ in group for index in indexes], publisher.publish_runs([run for _, run in group]))
        for group in by_subject.values()
    ]
    singles = [index for index in range(len(encoded)) if index not in in_runs]
    if singles:
        parts.append((singles, publisher.publish([encoded[index] for index in singles])))
    results = await asyncio.gather(*(part for _, part in parts), return_exceptions=True)
    failed = [result for result in results if isinstance(result, BaseException)]
    if unforeseen := [error for error in failed if not isinstance(error, TransportUnavailable)]:
        raise unforeseen[0]
    if failed and not any(_has_answer(result) for result in results):
        raise failed[0]
    outcomes = [UNSENT] * len(encoded)
    for (indexes, _), result in zip(parts, results, strict=True):
        lost = Outcome(False, str(result), lost=True)
        for place, index in enumerate(indexes):
            outcomes[index] = lost if isinstance(result, BaseException) else result[place]
    stop_runs(runs, outcomes)
    return outcomes


def _has_answer(result: Sequence[Outcome] | BaseException) -> bool:
    # A rejection is our own. It does not show that the server answers.
    return not isinstance(result, BaseException) and any(not (one.rejected or one.unsent) for one in result)


class Publisher:
    """Publishes, and listens for acknowledgements on an inbox of its own. Up until `reason` says why it broke."""

    def __init__(self, server: Server, *, window: int, address: str) -> None:
        self.client = server.build_client()
        self._servers = server.addresses
        self._address = address
        self.reason: str | None = None
        self.is_doubted = False
        """Something was not answered in time: `check` it before it is used again."""
        self._where = server.where
        self._seconds = server.seconds
        self._late = f"{self._where} gave no answer within {self._seconds:g} s."
        self._window = Window(messages=window, size=_MAX_BYTES_IN_FLIGHT)
        self._pending = PendingBatches()
        self._inbox = ""
        self._denied: set[str] = set()
        """Subjects to which this login may not publish, in lower case, as far as it was told."""
        self._refused_replies = 0
        self._is_without_batches = False
        """A stream refused a batch, or its server did not know what one is."""
        self._checking: asyncio.Task[None] | None = None

    @classmethod
    async def connect(cls, server: Server, *, window: int) -> Self:
        """Connect to the first server that accepts us; raise `TransportUnavailable` when none does."""

        async def connect_to(address: str, seconds: float) -> Self:
            publisher = cls(server, window=window, address=address)
            await connect_client(
                publisher.client,
                server,
                address,
                seconds=seconds,
                on_error=publisher._on_error,
                on_closed=publisher._on_closed,
                set_up=publisher._listen,
                pending_size=0,
            )
            return publisher

        return await connect_first(server.addresses, connect_to, seconds=server.seconds, errors=TransportUnavailable)

    @property
    def has_batches(self) -> bool:
        """The server stores several messages together or not at all, as far as is known."""
        version = self.client.connected_server_version
        return not self._is_without_batches and (version.major, version.minor) >= _FIRST_WITH_BATCHES

    @property
    def max_payload(self) -> int:
        """Bytes of headers and payload that the server takes."""
        return self.client.max_payload

    async def publish(self, messages: Sequence[EncodedMessage | Outcome]) -> list[Outcome]:
        """Return one outcome per message; one that is an outcome already keeps it."""
        batch = PublishBatch(messages, self._window)
        number = self._pending.add(batch)
        try:
            if self.reason is not None:
                batch.interrupt(self.reason)
            # While it waits for room in the window, the progress of the batches before it is its own.
            async with StallTimeout(self._seconds, measure=lambda: (self._window.left, self.client.count_sent())):
                await batch.write(self.client.write, reply=f"{self._inbox}.{number}")
            end = self.client.written
            await batch.wait(self._seconds, count_sent=lambda: min(self.client.count_sent(), end))
        except TimeoutError:
            self.is_doubted = True
        except ConnectionError as error:
            self._break(type(error).__name__)
        finally:
            self._pending.remove(number)
        return collect_outcomes(batch.answers, late=self._late, is_written=batch.is_written)

    async def publish_runs(self, runs: Sequence[Sequence[EncodedMessage]]) -> list[Outcome]:
        """Publish runs and return their outcomes, run by run. A stream has the beginning of each, or all of it.

        They go as atomic batches where the server and the stream have them. What is refused so goes message by message,
        each after the acknowledgement of the one before: then it is known which one was refused.
        """
        answers: list[list[Answer | None]] = [[] for _ in runs]
        is_over = False
        for part in _split_runs(runs, limit=self.max_payload) if self.has_batches else ():
            if len(part) == 1:
                break
            reply = await self._publish_atomically([message for _, message in part])
            if isinstance(reply, Outcome):
                for number, _ in part:
                    answers[number].append(reply)
                continue
            if isinstance(reply, FirstStored):
                answers[part[0][0]].append(DELIVERED)
            elif not isinstance(reply, BatchRefused):
                is_over = True
                for known, run in zip(answers, runs, strict=True):
                    if len(known) < len(run):
                        known.append(reply)
            self._is_without_batches |= isinstance(reply, FirstStored) or (
                isinstance(reply, BatchRefused) and reply.is_unsupported
            )
            break
        ends_at = asyncio.get_running_loop().time() + _MAX_ROUNDS_SECONDS
        while not is_over:
            is_over = not await self._publish_next(runs, answers) or asyncio.get_running_loop().time() > ends_at
        flat: list[Answer | None] = []
        for known, run in zip(answers, runs, strict=True):
            flat += [*known, *[UNSENT] * (len(run) - len(known))]
        return collect_outcomes(flat, late=self._late)

    async def _publish_next(
        self, runs: Sequence[Sequence[EncodedMessage]], answers: Sequence[list[Answer | None]]
    ) -> bool:
        """Publish the next message of each run whose last one was delivered; return False if there is none."""
        numbers = [
            number
            for number, known in enumerate(answers)
            if len(known) < len(runs[number]) and (not known or known[-1] == DELIVERED)
        ]
        if not numbers:
            return False
        try:
            outcomes = await self.publish([runs[number][len(answers[number])] for number in numbers])
        except TransportUnavailable as error:
            for number in numbers:
                answers[number].append(NotAnswered(str(error), is_outage=not error.mid_send))
            return False
        for number, outcome in zip(numbers, outcomes, strict=True):
            answers[number].append(outcome)
        return True

    async def _publish_atomically(self, messages: Sequence[EncodedMessage]) -> FirstStored | CommitReply | None:
        """Publish messages that are stored together or not at all; return None if there is no answer in time.

        The rest follows when the server has said that it knows what a batch is: one that does not would store each
        message for itself.
        """
        batch = AtomicBatch(messages, self._window)
        number = self._pending.add(batch)
        try:
            if self.reason is not None:
                batch.interrupt(self.reason)
            async with StallTimeout(self._seconds, measure=lambda: (self._window.left, self.client.count_sent())):
                await batch.wait_for_room()
            started = await self._write_and_wait(batch.start, batch.write_first, f"{self._inbox}.{number}.0")
            if not isinstance(started, BatchStarted):
                return started
            return await self._write_and_wait(batch.commit, batch.write_rest, f"{self._inbox}.{number}.1")
        except TimeoutError:
            self.is_doubted = True
            return None
        except ConnectionError as error:
            self._break(type(error).__name__)
            return NotAnswered(self.reason or "")
        finally:
            self._pending.remove(number)

    async def _write_and_wait(
        self,
        awaited: SendBatch[R],
        write: Callable[[Callable[[bytes], None], str], None],
        reply: str,
    ) -> R | None:
        if awaited.unanswered:
            write(self.client.write, reply)
        end = self.client.written
        await awaited.wait(self._seconds, count_sent=lambda: min(self.client.count_sent(), end))
        return awaited.answers[0]

    async def find_denied(self, subjects: Sequence[str]) -> frozenset[str] | None:
        """Return those of the subjects to which this login may not publish; None if the server does not say.

        Servers tell a login nothing about its rights, and checking by a message would reach subscribers. So each probe
        has a reply subject that no client may use: the server looks at the right to publish first, and refuses the
        probe in any case. Nobody receives it, and no stream keeps it.
        """
        denied = set()
        for subject in filter(_PLAIN_SUBJECT.fullmatch, subjects):
            self._denied.discard(subject.lower())
            before = self._refused_replies
            self.client.write(f"PUB {subject} {_REFUSED_REPLY} 0\r\n\r\n".encode())
            await self.check()  # what it refuses it has refused by now
            if subject.lower() in self._denied:
                denied.add(subject)
            elif self._refused_replies == before:
                return None  # neither: this server does something else with it
        return frozenset(denied)

    async def check(self) -> None:
        """Make a round trip to the server; break, and raise `TransportUnavailable`, if there is no answer."""
        if self.reason is None:
            # In a task, so that a cancelled caller does not cancel it: the client dies of an answer to a ping that
            # nobody waits for any more.
            if self._checking is None or self._checking.done():
                self._checking = asyncio.create_task(self._check())
            await asyncio.wait([self._checking])
        if self.reason is not None:
            raise TransportUnavailable(self.reason)

    async def _check(self) -> None:
        # Where there are others, a server that has been silent gets its share of the time, and is the last to be tried:
        # a frozen one accepts connections, and answers nothing.
        seconds = self._seconds / len(self._servers) if self.is_doubted else self._seconds
        try:
            await self.client.rtt(timeout=seconds)  # type: ignore[arg-type]  # declared as int, but only awaited
            self.is_doubted = False
        except Exception as error:
            self._servers.note_failure(self._address)
            self._break(describe_error(error, seconds=seconds))
            await self.close()

    async def close(self) -> None:
        """Close the connection. Messages in flight are interrupted."""
        self._break("it was closed")
        await close_client(self.client)

    def _break(self, why: str) -> None:
        if self.reason is None:
            self.reason = str(connection_broken_error(self._where, why))
            self._pending.interrupt(self.reason)
            self.client.abort()
            if self._checking is not None and self._checking is not asyncio.current_task():
                self._checking.cancel()

    async def _listen(self) -> None:
        self.client.bound_unsent()
        self._inbox = self.client.new_inbox()
        await self.client.subscribe(f"{self._inbox}.*.*", cb=self._on_reply)
        await self.check()  # the server has refused the subscription by now, if it does

    # --- called by the client ---

    async def _on_reply(self, message: Msg) -> None:
        status = None if message.headers is None else message.headers.get("Status")
        self._pending.resolve(message.subject[len(self._inbox) + 1 :], message.data, status)

    async def _on_error(self, error: Exception) -> None:
        """Handle an error that belongs to no call: a permission violation, or the end, which `_on_closed` handles."""
        violation = parse_permission_violation(str(error))
        if violation is None:
            self._refused_replies += _REFUSED_REPLY.lower() in str(error).lower()
            return
        if violation.action == "publish":
            self._denied.add(violation.subject)
            self._pending.deny(violation)
        elif self._inbox.lower() in violation.subject:
            self._break(
                f"NATS does not let this user listen for acknowledgements at {self._inbox.partition('.')[0]}.>: allow "
                "it, or set the option inbox"
            )

    async def _on_closed(self) -> None:
        self._break(redact_line(str(self.client.last_error or "the server hung up")))


class PublishBatch:
    """The messages of one send, written as fast as the window allows."""

    def __init__(self, messages: Sequence[EncodedMessage | Outcome], window: Window) -> None:
        self.is_written = False
        """Something of it was written."""
        self._messages = messages
        self._window = window
        self._batch = SendBatch[Answer](message if isinstance(message, Outcome) else None for message in messages)
        self._sizes: dict[int, int] = {}
        """Messages that take room in the window: index to bytes."""

    @property
    def answers(self) -> Sequence[Answer | None]:
        return self._batch.answers

    async def wait(self, seconds: float, *, count_sent: Callable[[], int]) -> None:
        """Wait until every message has its answer; raise `TimeoutError` when there is no progress for so long."""
        await self._batch.wait(seconds, count_sent=count_sent)

    async def write(self, write: Callable[[bytes], None], *, reply: str) -> None:
        """Write every message that has no answer yet."""
        frames: list[bytes] = []
        size, answers = 0, self._batch.answers
        for index, message in enumerate(self._messages):
            if answers[index] is not None or isinstance(message, Outcome):
                continue
            frame = message.build_frame(f"{reply}.{index}")
            if size > _WRITE_SIZE or not self._window.has_room(len(frame)):
                self._write_frames(write, frames)
                size = 0
                await self._window.wait_for_room(len(frame))
            self._window.enter(len(frame))
            self._sizes[index] = len(frame)
            frames.append(frame)
            size += len(frame)
        self._write_frames(write, frames)

    def _write_frames(self, write: Callable[[bytes], None], frames: list[bytes]) -> None:
        if frames and self._batch.unanswered:
            write(b"".join(frames))
            self.is_written = True
        frames.clear()

    def resolve(self, index: int, data: bytes, status: str | None) -> None:
        """Take the reply to one message."""
        if index < len(self._messages) and isinstance(message := self._messages[index], EncodedMessage):
            self._answer(index, read_ack(data, status=status, subject=message.subject))

    def deny(self, violation: PermissionViolation) -> None:
        """Answer the messages to this subject, because the server sends no reply for them."""
        for index, message in enumerate(self._messages):
            if isinstance(message, EncodedMessage) and message.subject.lower() == violation.subject:
                subject = message.subject[:100]
                text = f"NATS does not let this user publish to {subject!r}: allow it, or use another login."
                self._answer(index, Outcome(False, text, not_now=True, missing=True))

    def interrupt(self, reason: str) -> None:
        """End it: no more replies will come."""
        self._batch.answer_rest(NotAnswered(reason))
        self.release()

    def release(self) -> None:
        """Give the window back the room of all messages."""
        for index in list(self._sizes):
            self._leave(index)

    def _answer(self, index: int, answer: Answer) -> None:
        if self._batch.answer(index, answer):
            self._leave(index)

    def _leave(self, index: int) -> None:
        size = self._sizes.pop(index, None)
        if size is not None:
            self._window.leave(size)


class AtomicBatch:
    """Messages to one subject that a stream stores together or not at all. In the window they are one message."""

    def __init__(self, messages: Sequence[EncodedMessage], window: Window) -> None:
        self.start: SendBatch[StartReply] = SendBatch([None])
        """The answer to the first message."""
        self.commit: SendBatch[CommitReply] = SendBatch([None])
        """The answer to the last one, and so to all."""
        self._messages = messages
        self._window = window
        self._id = secrets.token_hex(16)
        self._size = sum(message.size + BATCH_HEADERS for message in messages)
        self._has_room = False

    async def wait_for_room(self) -> None:
        """Wait until the window has room for it, and take it."""
        await self._window.wait_for_room(self._size)
        self._window.enter(self._size)
        self._has_room = True

    def write_first(self, write: Callable[[bytes], None], reply: str) -> None:
        """Write the first message, whose answer tells whether the server takes a batch."""
        write(build_batch_frame(self._messages[0], batch=self._id, number=1, is_last=False, reply=reply))

    def write_rest(self, write: Callable[[bytes], None], reply: str) -> None:
        """Write the other messages. The last one commits them, and is the only one that is answered."""
        last = len(self._messages)
        frames = [
            build_batch_frame(
                message,
                batch=self._id,
                number=number,
                is_last=number == last,
                reply=reply if number == last else None,
            )
            for number, message in enumerate(self._messages[1:], start=2)
        ]
        write(b"".join(frames))

    def resolve(self, index: int, data: bytes, status: str | None) -> None:
        """Take the reply to the first message, or to the last."""
        if index == 0:
            self.start.answer(0, read_batch_start(data, status=status))
        else:
            self.commit.answer(0, read_batch_commit(data, status=status, count=len(self._messages)))

    def deny(self, violation: PermissionViolation) -> None:
        """End it, if the server refuses this subject: it sends no reply then."""
        if self._messages[0].subject.lower() == violation.subject:
            self._answer_rest(BatchRefused())

    def interrupt(self, reason: str) -> None:
        """End it: no more replies will come."""
        self._answer_rest(NotAnswered(reason))
        self.release()

    def release(self) -> None:
        """Give the window back its room."""
        if self._has_room:
            self._has_room = False
            self._window.leave(self._size)

    def _answer_rest(self, answer: BatchRefused | NotAnswered) -> None:
        self.start.answer_rest(answer)
        self.commit.answer_rest(answer)


def _split_runs(
    runs: Sequence[Sequence[EncodedMessage]], *, limit: int
) -> Iterator[Sequence[tuple[int, EncodedMessage]]]:
    """Yield the messages of batches, each with the number of its run. They end before the first that cannot be in one.

    `limit` is the number of bytes that a message may have.
    """
    subject = runs[0][0].subject
    part: list[tuple[int, EncodedMessage]] = []
    size = 0
    for number, run in enumerate(runs):
        for message in run:
            if message.subject != subject or message.size + BATCH_HEADERS > limit:
                break
            if part and (len(part) == _MAX_BATCH or size + message.size > _MAX_BATCH_BYTES):
                yield part
                part, size = [], 0
            part.append((number, message))
            size += message.size
    if part:
        yield part


class PendingBatches:
    """The batches in flight on one connection, by the number in their reply subjects."""

    def __init__(self) -> None:
        self._by_number: dict[int, PublishBatch | AtomicBatch] = {}
        self._last = 0

    def add(self, batch: PublishBatch | AtomicBatch) -> int:
        self._last += 1
        self._by_number[self._last] = batch
        return self._last

    def remove(self, number: int) -> None:
        batch = self._by_number.pop(number, None)
        if batch is not None:
            batch.release()

    def resolve(self, token: str, data: bytes, status: str | None) -> None:
        """Take a reply whose subject ends in NUMBER.INDEX. One that comes too late is dropped."""
        number, _, index = token.partition(".")
        batch = self._by_number.get(int(number))
        if batch is not None:
            batch.resolve(int(index), data, status)

    def deny(self, violation: PermissionViolation) -> None:
        for batch in list(self._by_number.values()):
            batch.deny(violation)

    def interrupt(self, reason: str) -> None:
        for batch in list(self._by_number.values()):
            batch.interrupt(reason)


class Window:
    """Limits the messages and bytes in flight. A message that is larger than the window goes alone."""

    def __init__(self, *, messages: int, size: int) -> None:
        self._max_messages = messages
        self._max_size = size
        self._messages = 0
        self._size = 0
        self._freed = asyncio.Event()
        self.left = 0
        """How many messages have left it."""

    def has_room(self, size: int) -> bool:
        """Return True if a message of so many bytes may go now."""
        return self._messages < self._max_messages and (self._size + size <= self._max_size or not self._messages)

    def enter(self, size: int) -> None:
        self._messages += 1
        self._size += size

    def leave(self, size: int) -> None:
        self._messages -= 1
        self._size -= size
        self.left += 1
        self._freed.set()

    async def wait_for_room(self, size: int) -> None:
        """Wait until a message of so many bytes may go."""
        while not self.has_room(size):
            self._freed.clear()
            await self._freed.wait()
