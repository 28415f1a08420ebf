"""Redis Streams: each message is an entry of a stream, added many at once. For Valkey too."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from pillarbox.brokers.errors import connection_broken_error
from pillarbox.brokers.redis.checks import check_server
from pillarbox.brokers.redis.connection import Connection, ConnectionBroken, ConnectionPool, Server
from pillarbox.brokers.redis.encoding import MAX_SCRIPT_WORDS, EncodedMessage, Encoder, encode_run, encode_wait
from pillarbox.brokers.redis.errors import (
    describe_ping_reply,
    is_script_refusal,
    read_add_reply,
    read_run_reply,
    read_wait_reply,
)
from pillarbox.brokers.redis.settings import NAME, Durability, RedisSettings, redis_settings
from pillarbox.brokers.send_batch import (
    DELIVERED,
    UNSENT,
    Answer,
    NotAnswered,
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
from pillarbox.message import Message

__all__ = ["RedisTransport", "redis_transport"]

_log: Final = logging.getLogger(__name__)
_CHUNK: Final = 1024 * 1024
"""Bytes that are written before the replies to them are read: more would only fill buffers."""


class RedisTransport:
    """Adds messages as CloudEvents to streams.

    Delivered means that the server replied with the entry's id, and that as many disks and replicas have it as the
    option durability requires. Secrets are read when this is built.
    """

    def __init__(self, settings: RedisSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        self.features = TransportFeatures(name=NAME, addresses="{" in settings.key, ping_is_witness=True, runs=True)
        self.settings = settings
        self._server = Server.from_settings(settings, environ=environ)
        self._pool = ConnectionPool(self._server)
        key = compile_template(settings.key, option="key", transport=NAME)
        self._encoder = Encoder(key=key, mode=settings.mode, create=settings.create, maxlen=settings.maxlen)
        self._seconds = settings.timeout.total_seconds()
        self._has_scripts = True
        """The server lets this login run scripts, as far as is known."""
        # The server stops waiting well before we do, so that its count arrives in time.
        self._wait = encode_wait(settings.required_durability, milliseconds=max(1, round(self._seconds * 500)))
        if settings.maxlen is not None:
            _log.warning("maxlen=%d: the oldest entries of a stream are dropped, read or not.", settings.maxlen)

    def __repr__(self) -> str:
        return f"RedisTransport({self.settings!r})"

    async def open(self) -> None:
        self._pool.open()
        try:
            await self.ping()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._pool.close()

    async def ping(self) -> None:
        async with self._pool.borrow() as connection:
            self._update_limit(connection)
            try:
                async with asyncio.timeout(self._seconds):
                    reply = await connection.call("PING")
            except (ConnectionBroken, TimeoutError) as error:
                await connection.close()
                reason = str(error) or f"no answer within {self._seconds:g} s"
                raise TransportUnavailable(f"{self._server.where} cannot be reached ({reason}).") from error
        if reply != b"PONG":
            raise TransportUnavailable(f"{self._server.where} is out of service ({describe_ping_reply(reply)}).")

    def get_address(self, message: Message) -> str | None:
        return describe_address(message, stream=self._encoder.key)

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        if not messages:
            return []
        runs = find_runs(messages)
        async with self._pool.borrow() as connection:
            self._update_limit(connection)
            limit, encode = connection.max_field, self._encoder.encode
            encoded = encode_each(messages, lambda message: encode(message, limit=limit), broker="Redis")
            stop_runs(runs, encoded)
            pipeline = _Pipeline(
                encoded,
                runs=runs,
                has_scripts=self._has_scripts,
                durability=self.settings.required_durability,
                wait=self._wait,
            )
            try:
                async with asyncio.timeout(self._seconds):
                    await pipeline.run(connection)
            except TimeoutError:
                await connection.close()  # its replies would be taken for those of the next batch
            except ConnectionBroken as error:
                await connection.close()
                pipeline.interrupt(str(connection_broken_error(self._server.where, str(error))))
            except BaseException:
                await connection.close()
                raise
        if self._has_scripts and not pipeline.has_scripts:
            _log.warning("%s: this login may run no scripts, so messages of one key go one by one.", self._server.where)
            self._has_scripts = False
        late = f"{self._server.where} gave no answer within {self._seconds:g} s."
        outcomes = collect_outcomes(pipeline.answers, late=late, is_written=pipeline.is_written)
        stop_runs(runs, outcomes)
        return outcomes

    async def inspect(self, *, topics: Sequence[str]) -> Sequence[Finding]:
        async with self._pool.borrow() as connection:
            try:
                async with asyncio.timeout(self._seconds):
                    return await check_server(connection, self.settings, topics=topics)
            except (ConnectionBroken, TimeoutError) as error:
                await connection.close()
                raise TransportUnavailable(f"{self._server.where} could not be looked at ({error}).") from error

    def _update_limit(self, connection: Connection) -> None:
        if self.features.max_payload != connection.max_field:
            self.features = msgspec.structs.replace(self.features, max_payload=connection.max_field)


def redis_transport(url: TransportUrl) -> RedisTransport:
    """Build the transport for `redis:` and `rediss:`, each also with `+sentinel`."""
    return RedisTransport(redis_settings(url))


class _Pipeline:
    """The messages of one send, and their answers so far. An answer stays, however the send ends."""

    def __init__(
        self,
        messages: Sequence[EncodedMessage | Outcome],
        *,
        runs: Sequence[Sequence[int]],
        has_scripts: bool,
        durability: Durability,
        wait: bytes | None,
    ) -> None:
        self.answers: list[Answer | None] = [message if isinstance(message, Outcome) else None for message in messages]
        self.is_written = False
        """Something of it was written."""
        self.has_scripts = has_scripts
        """The server lets this login run scripts, as far as is known. If not, a run goes message by message."""
        self._messages = messages
        self._durability = durability
        self._wait = wait
        in_runs = {index for run in runs for index in run}
        self._singles = [
            (index, message)
            for index, message in enumerate(messages)
            if isinstance(message, EncodedMessage) and index not in in_runs
        ]
        self._singles.reverse()  # the next one is taken from the end
        self._runs = deque(runs)
        """What has not been written of runs."""

    async def run(self, connection: Connection) -> None:
        """Add all messages, and wait until they are durable; raise `ConnectionBroken` when the connection breaks."""
        try:
            while self._singles or self._runs:
                singles, size = self._take_singles()
                commands = self._take_commands(room=_CHUNK - size)
                pieces = [piece for _, message in singles for piece in message.pieces]
                pieces += [piece for command in commands for piece in command.pieces]
                if not pieces:
                    continue
                self.is_written = True
                connection.send(b"".join(pieces))
                for index, message in singles:
                    answer = read_add_reply(await connection.read_reply(), key=message.key)
                    self.answers[index] = answer
                    if connection.is_broken:
                        self._end(answer)
                        return
                for command in commands:
                    first = self._take_reply(command, await connection.read_reply())
                    if connection.is_broken:
                        self._end(first)
                        return
            await self._wait_until_durable(connection)
        except BaseException:
            # What was added, but is not known to be durable, was not delivered.
            if self._wait is not None:
                self._replace_delivered(None)
            raise

    def interrupt(self, reason: str) -> None:
        """End it: no more replies will come."""
        self._answer_rest(NotAnswered(reason))

    def _take_singles(self) -> tuple[list[tuple[int, EncodedMessage]], int]:
        """Return the next messages that are in no run, and their bytes."""
        singles: list[tuple[int, EncodedMessage]] = []
        size = 0
        while self._singles:
            single = self._singles[-1]
            if singles and size + single[1].size > _CHUNK:
                break
            singles.append(self._singles.pop())
            size += single[1].size
        return singles, size

    def _take_commands(self, *, room: int) -> list[_Command]:
        """Return the next commands of runs: at most one of each, because its next one depends on the answers."""
        commands: list[_Command] = []
        while self._runs and (room > 0 or not commands):
            run = self._runs.popleft()
            head = self._messages[run[0]]
            if isinstance(head, EncodedMessage):  # else it was rejected, and the rest of its run is unsent
                # At the end of a chunk a run is not cut into small commands: each costs a round trip.
                command = self._encode_first(run, head, room=max(room, _CHUNK // 2))
                commands.append(command)
                room -= command.size
        return commands

    def _encode_first(self, indexes: Sequence[int], head: EncodedMessage, *, room: int) -> _Command:
        """Encode the beginning of a run: what goes to one stream and has room, at least one message."""
        messages, size = [head], head.size
        if len(indexes) == 1 or not self.has_scripts or head.words > MAX_SCRIPT_WORDS:
            return _Command(head.pieces, size, head.key, indexes[:1], indexes[1:])
        for index in indexes[1:]:
            message = self._messages[index]
            if isinstance(message, Outcome) or message.key != head.key or message.words > MAX_SCRIPT_WORDS:
                break
            size += message.size
            if size > room:
                break
            messages.append(message)
        count = len(messages)
        pieces = head.pieces if count == 1 else encode_run(messages)
        return _Command(pieces, size, head.key, indexes[:count], indexes[count:])

    def _take_reply(self, command: _Command, reply: object) -> Answer | None:
        """Record the answers in a reply; return that of the first message, if there is one."""
        indexes, key = command.indexes, command.key
        if len(indexes) == 1:
            answers: Sequence[Answer] = (read_add_reply(reply, key=key),)
        elif is_script_refusal(reply):
            self.has_scripts = False
            self._runs.append([*indexes, *command.rest])
            return None
        else:
            answers = read_run_reply(reply, key=key, count=len(indexes))
        for index, answer in zip(indexes, answers, strict=False):
            self.answers[index] = answer
        rest = [*indexes[len(answers) :], *command.rest]
        if rest and answers[-1] is DELIVERED:
            self._runs.append(rest)
        else:
            for index in rest:
                self.answers[index] = UNSENT
        return answers[0]

    async def _wait_until_durable(self, connection: Connection) -> None:
        if self._wait is None or DELIVERED not in self.answers:
            return
        connection.send(self._wait)
        answer = read_wait_reply(await connection.read_reply(), self._durability)
        if answer is not None:
            self._replace_delivered(answer)

    def _end(self, answer: Answer | None) -> None:
        # The server closed the connection over this message: too large, or a state in which it takes nothing.
        if isinstance(answer, NotAnswered):
            self._answer_rest(answer)

    def _answer_rest(self, answer: Answer) -> None:
        self.answers = [answer if known is None else known for known in self.answers]

    def _replace_delivered(self, answer: Answer | None) -> None:
        self.answers = [answer if known is DELIVERED else known for known in self.answers]


class _Command(NamedTuple):
    """A command that adds a message, or the beginning of a run."""

    pieces: Sequence[bytes]
    size: int
    key: str
    indexes: Sequence[int]
    rest: Sequence[int]
    """What remains of the run. It is written when all of this command was added."""
