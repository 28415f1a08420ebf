"""Redis Streams: a consumer group, read with acknowledgement. For Valkey too."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Self

from pillarbox.brokers.errors import connection_broken_error
from pillarbox.brokers.held_bytes import BatchSize, HeldBytes
from pillarbox.brokers.reconnecting import ReconnectingConnection
from pillarbox.brokers.redis.connection import ConnectionBroken, Server, SharedConnection, connect
from pillarbox.brokers.redis.encoding import (
    ClaimReply,
    Delivery,
    ReadReply,
    parse_claim_reply,
    parse_entry_id,
    parse_pending_ids,
    parse_read_reply,
    to_incoming_message,
)
from pillarbox.brokers.redis.errors import (
    ErrorReply,
    describe_error_reply,
    is_missing_group,
    is_script_refusal,
)
from pillarbox.brokers.redis.settings import (
    GIVEN_BACK,
    NAME,
    RedisReceiverSettings,
    build_consumer_name,
    redis_receiver_settings,
)
from pillarbox.brokers.settings import TransportUrl
from pillarbox.contracts.receiver import IncomingMessage, ReceiverFeatures
from pillarbox.errors import TransportUnavailable
from pillarbox.tasks import cancel_all

__all__ = ["RedisReceiver", "redis_receiver"]

_log: Final = logging.getLogger(__name__)
_BLOCK: Final = 5.0
"""Seconds that a read waits at the server. Within them, entries that were given back are noticed."""
_CLOSE_TIMEOUT: Final = 5.0
_START: Final = "0-0"
_READ_BYTES: Final = 8 * 1024 * 1024
"""Of one reply: redis-py keeps it twice while it is read."""
_PAGE: Final = 1_000
_REMOVE_CONSUMER: Final = (
    "if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) == 0 then "
    "return redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2]) end"
)
"""One step, because the pending entries of a consumer are forgotten with it, and never delivered again."""


_READ: Final = """
local from, found, size = ARGV[3], {}, 0
while #found < tonumber(ARGV[4]) do
  local reply = redis.pcall('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', '1', 'STREAMS', KEYS[1], from)
  if reply and reply.err then
    if #found == 0 then return reply end
    break
  end
  local entry = reply and reply[1] and reply[1][2][1]
  if not entry then break end
  found[#found + 1] = entry
  for _, field in ipairs(entry[2] or {}) do size = size + #field end
  if size >= tonumber(ARGV[5]) then break end
  if from ~= '>' then from = entry[1] end
end
return {{KEYS[1], found}}
"""
"""Read entries up to a number and a size: COUNT counts entries, and they may be of any size."""
_CLAIM: Final = """
local cursor, found, gone, size = ARGV[4], {}, {}, 0
while #found < tonumber(ARGV[5]) do
  local reply = redis.pcall('XAUTOCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], cursor, 'COUNT', '1')
  if reply.err then
    if #found == 0 then return reply end
    break
  end
  cursor = reply[1]
  for _, id in ipairs(reply[3] or {}) do gone[#gone + 1] = id end
  for _, entry in ipairs(reply[2]) do
    if entry and entry[2] then
      found[#found + 1] = entry
      for _, field in ipairs(entry[2]) do size = size + #field end
    end
  end
  if cursor == '0-0' or size >= tonumber(ARGV[6]) then break end
end
return {cursor, found, gone}
"""
"""Claim entries up to a number and a size."""


class Batch(NamedTuple):
    """How much to read at once, at least one entry."""

    limit: int
    size: int
    """Bytes. The last entry may exceed them."""


class RedisReceiver:
    """Reads one consumer group. Secrets are read when this is built.

    While an entry is being handled the server hears of it, and nobody else claims it, however long its handler takes.
    A connection that broke is replaced by the next `receive` or `ping`, not in the background.
    """

    def __init__(self, settings: RedisReceiverSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        self.features = ReceiverFeatures(name=NAME)
        self.settings = settings
        self.name = settings.consumer or build_consumer_name()
        """The name of this consumer in the group."""
        self._held = HeldBytes()
        self._server = Server.from_settings(settings.server, environ=environ)
        self._consumer = ReconnectingConnection(
            lambda: GroupConsumer.connect(self._server, settings, name=self.name, held=self._held),
            owner="redis receiver",
        )

    def __repr__(self) -> str:
        return f"RedisReceiver({self.settings!r})"

    @property
    def pending_bytes(self) -> int:
        return self._held.limit

    @pending_bytes.setter
    def pending_bytes(self, limit: int) -> None:
        self._held.limit = limit

    async def open(self) -> None:
        await self._consumer.open()

    async def close(self) -> None:
        await self._consumer.close()
        self._held.clear()

    async def ping(self) -> None:
        """Look up the group, and declare it again, in case somebody removed it."""
        consumer = await self._consumer.get()
        await consumer.ensure_group()

    async def receive(self, *, limit: int) -> Sequence[IncomingMessage]:
        consumer = await self._consumer.get()
        stream = self.settings.stream
        return [
            to_incoming_message(delivery, stream=stream, token=(consumer, delivery))
            for delivery in await consumer.take(limit)
        ]

    async def acknowledge(self, received: IncomingMessage) -> None:
        consumer, delivery = received.token
        self._held.remove(delivery)
        if self._consumer.is_current(consumer):
            await consumer.acknowledge(delivery)

    async def give_back(self, received: IncomingMessage) -> None:
        consumer, delivery = received.token
        self._held.remove(delivery)
        if self._consumer.is_current(consumer):
            await consumer.give_back(delivery)


def redis_receiver(url: TransportUrl) -> RedisReceiver:
    """Build the receiver for `redis:` and `rediss:`, each also with `+sentinel`."""
    return RedisReceiver(redis_receiver_settings(url))


class GroupConsumer:
    """Reads entries, renews those in hand, and acknowledges them. Up until `reason` says why it broke.

    A read blocks its connection while it waits at the server, so there is another connection for the rest.
    """

    def __init__(self, settings: RedisReceiverSettings, *, group: _Group, where: str, held: HeldBytes) -> None:
        self.reason: str | None = None
        self._held = held
        self._group = group
        self._where = where
        self._stream = settings.stream
        self._renew_interval = settings.claim_after.total_seconds() / 3
        self._reader: SharedConnection
        self._caller: SharedConnection
        """For all commands but reads."""
        self._reader_id: str | None = None
        """The server's id of the connection that reads."""
        self._waiting: deque[Delivery] = deque()
        self._in_hand: dict[str, Delivery] = {}
        """All that came and is neither acknowledged nor given back."""
        self._changed = asyncio.Event()
        self._wanted = asyncio.Event()
        held.on_room = self._wanted.set
        self._limit = 1
        self._takers = 0
        self._own_after: str | None = _START
        """Up to where the entries that were ours before this connection are read; None when all are."""
        self._cursor = _START
        self._claim_at = 0.0
        """When to look for abandoned entries again."""
        self._is_leaving = False
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def connect(cls, server: Server, settings: RedisReceiverSettings, *, name: str, held: HeldBytes) -> Self:
        """Connect to the group; raise `TransportUnavailable` when that is not possible."""
        group = _Group(settings, name=name, where=server.where)
        consumer = cls(settings, group=group, where=server.where, held=held)
        seconds = settings.timeout.total_seconds()
        consumer._caller = SharedConnection(await connect(server), seconds=seconds, on_broken=consumer._break)
        try:
            consumer._reader = SharedConnection(await connect(server), seconds=seconds, on_broken=consumer._break)
        except BaseException:
            await consumer._caller.close()
            raise
        try:
            await consumer.ensure_group()
            consumer._reader_id = await _find_id(consumer._reader, where=server.where)
        except BaseException:
            await consumer._disconnect()
            raise
        consumer._tasks = [
            asyncio.create_task(consumer._read_entries()),
            asyncio.create_task(consumer._renew_entries()),
        ]
        return consumer

    async def ensure_group(self) -> None:
        """Look up the group; create it if it does not exist and `declare` is set."""
        await self._group.ensure(self._caller)

    async def take(self, limit: int) -> list[Delivery]:
        """Return at least one entry, in order; raise `TransportUnavailable` as soon as this breaks."""
        self._takers += 1
        try:
            while True:
                if self.reason is not None:
                    raise TransportUnavailable(self.reason)
                if self._waiting:
                    return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
                self._changed.clear()
                self._limit = limit
                self._wanted.set()
                await self._changed.wait()
        finally:
            self._takers -= 1

    async def acknowledge(self, delivery: Delivery) -> None:
        """Acknowledge an entry, and wait for the server. If the connection breaks, it is delivered again."""
        if self._remove(delivery):
            with self._break_on_error():
                await self._group.acknowledge(self._caller, delivery.id)

    async def give_back(self, delivery: Delivery) -> None:
        """Give an entry back, for any consumer to claim at once."""
        if self._remove(delivery):
            with self._break_on_error():
                await self._group.give_back(self._caller, delivery.id)
                self._cursor, self._claim_at = _START, 0.0

    async def close(self) -> None:
        """Give back what is in hand, leave the group, and disconnect."""
        if self.reason is None:
            with contextlib.suppress(TransportUnavailable, TimeoutError):
                async with asyncio.timeout(_BLOCK + _CLOSE_TIMEOUT):
                    await self._leave()
        self._break("it was closed")
        await self._disconnect()

    # --- background tasks ---

    async def _read_entries(self) -> None:
        with self._break_on_error():
            while not self._is_leaving:
                if self._waiting or not self._takers or self._held.is_full:
                    self._wanted.clear()
                    await self._wanted.wait()
                    continue
                for delivery in await self._fetch(self._limit):
                    self._in_hand[delivery.id] = delivery
                    self._waiting.append(delivery)
                    self._held.add(delivery, delivery.size)
                if self._waiting:
                    self._changed.set()

    async def _fetch(self, limit: int) -> Sequence[Delivery]:
        """Fetch what was ours before, then what others abandoned, then what is new: about the stream's order."""
        batch = Batch(limit, min(self._held.room, _READ_BYTES))
        if self._own_after is not None:
            return await self._fetch_own(self._own_after, batch)
        now = asyncio.get_running_loop().time()
        if now >= self._claim_at:
            return await self._claim_abandoned(batch)
        reply = await self._group.read_new(self._reader, batch=batch, seconds=min(_BLOCK, self._claim_at - now))
        return reply.deliveries

    async def _fetch_own(self, after: str, batch: Batch) -> Sequence[Delivery]:
        reply = await self._group.read_own(self._reader, after=after, batch=batch)
        if reply.trimmed:
            await self._group.acknowledge(self._caller, *reply.trimmed)
            self._warn_of_loss(reply.trimmed)
        ids = [*(delivery.id for delivery in reply.deliveries), *reply.trimmed]
        self._own_after = max(ids, key=parse_entry_id) if ids else None
        return reply.deliveries

    async def _claim_abandoned(self, batch: Batch) -> Sequence[Delivery]:
        self._claim_at = asyncio.get_running_loop().time() + min(_BLOCK, self._renew_interval)
        reply = await self._group.claim_abandoned(self._reader, cursor=self._cursor, batch=batch)
        self._cursor = reply.cursor
        if reply.cursor != _START:
            self._claim_at = 0.0
        self._warn_of_loss(reply.trimmed)
        # An entry that is being handled here, and was renewed too late, is not to be handled twice.
        return [delivery for delivery in reply.deliveries if delivery.id not in self._in_hand]

    async def _renew_entries(self) -> None:
        with self._break_on_error():
            while True:
                await asyncio.sleep(self._renew_interval)
                if self._in_hand:
                    await self._group.renew(self._caller, set(self._in_hand))

    # --- the end ---

    async def _leave(self) -> None:
        # A read that waits at the server has to end first: what it brings would belong to a consumer that is gone.
        self._is_leaving = True
        self._wanted.set()
        if self._reader_id is not None:
            with contextlib.suppress(ConnectionBroken):
                await self._caller.call("CLIENT", "UNBLOCK", self._reader_id)
        await asyncio.gather(self._tasks[0], return_exceptions=True)
        if self.reason is None:
            await self._group.leave(self._caller)

    async def _disconnect(self) -> None:
        await cancel_all(self._tasks)
        await self._reader.close()
        await self._caller.close()

    @contextlib.contextmanager
    def _break_on_error(self) -> Iterator[None]:
        try:
            yield
        except TransportUnavailable as error:
            self._end(str(error))

    def _break(self, why: str) -> None:
        self._end(str(connection_broken_error(self._where, why)))

    def _end(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
        for delivery in self._waiting:
            self._held.remove(delivery)
        self._waiting.clear()
        self._changed.set()

    def _remove(self, delivery: Delivery) -> bool:
        """Remove a delivery from those in hand; return False if it is not one of them."""
        if self.reason is not None or self._in_hand.get(delivery.id) is not delivery:
            return False
        del self._in_hand[delivery.id]
        return True

    def _warn_of_loss(self, trimmed: Sequence[str]) -> None:
        if trimmed:
            _log.warning("Lost: %d entries of %r were trimmed before they were handled.", len(trimmed), self._stream)


async def _find_id(connection: SharedConnection, *, where: str) -> str | None:
    """Return the server's id of a connection; None if this login may not ask: then `close` waits for a blocked read."""
    try:
        reply = await connection.call("CLIENT", "ID")
    except ConnectionBroken as error:
        raise connection_broken_error(where, str(error)) from error
    return str(reply) if isinstance(reply, int) else None


class _Group:
    """The commands of one consumer in one group. An error of the server raises `TransportUnavailable`."""

    def __init__(self, settings: RedisReceiverSettings, *, name: str, where: str) -> None:
        self.name = name
        self._settings = settings
        self._where = where
        self._group_args = (settings.stream, settings.group)
        self._min_idle = str(round(settings.claim_after.total_seconds() * 1000))
        self._may_run_scripts = True
        self._fallback = BatchSize()
        """For a login that may run no scripts."""

    async def ensure(self, connection: SharedConnection) -> None:
        """Look up the group; create it if it does not exist and `declare` is set."""
        reply = await self._try_call(connection, "XPENDING", *self._group_args)
        if is_missing_group(reply) and self._settings.declare:
            reply = await self._try_call(connection, "XGROUP", "CREATE", *self._group_args, "0", "MKSTREAM")
            if isinstance(reply, ErrorReply) and reply.code == "BUSYGROUP":  # another consumer created it meanwhile
                return
        self._check(reply)

    # --- reading ---

    async def read_own(self, connection: SharedConnection, *, after: str, batch: Batch) -> ReadReply:
        """Read the entries that are pending for this consumer's name, from before this connection."""
        return await self._read_batch(connection, after, batch, redelivered=True)

    async def read_new(self, connection: SharedConnection, *, batch: Batch, seconds: float) -> ReadReply:
        """Read entries that no consumer has had, and wait so long for the first."""
        if self._may_run_scripts:
            reply = await self._read_batch(connection, ">", batch, redelivered=False)
            if reply.deliveries:
                return reply
        count = 1 if self._may_run_scripts else self._fallback.choose(*batch)
        milliseconds = str(max(1, round(seconds * 1000)))  # 0 would be for ever
        words = ("COUNT", str(count), "BLOCK", milliseconds)
        reply = parse_read_reply(await self._read(connection, ">", *words, blocks=seconds), redelivered=False)
        self._fallback.learn([delivery.size for delivery in reply.deliveries])
        return reply

    async def _read_batch(
        self, connection: SharedConnection, start: str, batch: Batch, *, redelivered: bool
    ) -> ReadReply:
        stream, group = self._group_args
        if self._may_run_scripts:
            words = (_READ, "1", stream, group, self.name, start, str(batch.limit), str(batch.size))
            reply = await self._run_script(connection, *words)
            if reply is not None:
                return parse_read_reply(reply, redelivered=redelivered)
        count = str(self._fallback.choose(*batch))
        found = parse_read_reply(await self._read(connection, start, "COUNT", count), redelivered=redelivered)
        self._fallback.learn([delivery.size for delivery in found.deliveries])
        return found

    async def claim_abandoned(self, connection: SharedConnection, *, cursor: str, batch: Batch) -> ClaimReply:
        """Claim entries that their consumers have not renewed for too long, and those that were given back."""
        stream, group = self._group_args
        if self._may_run_scripts:
            words = (_CLAIM, "1", stream, group, self.name, self._min_idle, cursor, str(batch.limit), str(batch.size))
            reply = await self._run_script(connection, *words)
            if reply is not None:
                return parse_claim_reply(reply)
        count = str(self._fallback.choose(*batch))
        claim = ("XAUTOCLAIM", *self._group_args, self.name, self._min_idle, cursor, "COUNT", count)
        found = parse_claim_reply(await self._call(connection, *claim))
        self._fallback.learn([delivery.size for delivery in found.deliveries])
        return found

    async def _run_script(self, connection: SharedConnection, *words: str) -> object:
        """Run a script; return None when it fails. The plain command then says more about the reason."""
        reply = await self._try_call(connection, "EVAL", *words)
        if not isinstance(reply, ErrorReply):
            return reply
        self._may_run_scripts = not is_script_refusal(reply)
        return None

    async def _read(self, connection: SharedConnection, start: str, *options: str, blocks: float = 0.0) -> object:
        stream, group = self._group_args
        words = ("XREADGROUP", "GROUP", group, self.name, *options, "STREAMS", stream, start)
        return await self._call(connection, *words, blocks=blocks)

    # --- settling ---

    async def acknowledge(self, connection: SharedConnection, *ids: str) -> None:
        await self._call(connection, "XACK", *self._group_args, *ids)

    async def give_back(self, connection: SharedConnection, *ids: str) -> None:
        # With an idle time since 1970, any consumer's next claim takes them.
        await self._call(connection, "XCLAIM", *self._group_args, GIVEN_BACK, "0", *ids, "TIME", "0", "JUSTID")

    async def renew(self, connection: SharedConnection, ids: set[str]) -> None:
        """Reset the idle time of entries in hand. Those that another consumer has claimed meanwhile stay with it."""
        first, *_, last = sorted(ids, key=parse_entry_id) * 2
        ours = ids.intersection(await self._list_pending(connection, first, last, count=2 * len(ids) + _PAGE))
        if ours:
            await self._call(connection, "XCLAIM", *self._group_args, self.name, "0", *ours, "JUSTID")

    async def leave(self, connection: SharedConnection) -> None:
        """Give back all pending entries, and remove the consumer from the group, unless it still has some."""
        while ids := await self._list_pending(connection, "-", "+", count=_PAGE):
            await self.give_back(connection, *ids)
        stream, group = self._group_args
        await self._try_call(connection, "EVAL", _REMOVE_CONSUMER, "1", stream, group, self.name)

    async def _list_pending(self, connection: SharedConnection, first: str, last: str, *, count: int) -> list[str]:
        return parse_pending_ids(
            await self._call(connection, "XPENDING", *self._group_args, first, last, str(count), self.name)
        )

    # --- replies ---

    async def _call(self, connection: SharedConnection, *words: str, blocks: float = 0.0) -> object:
        return self._check(await self._try_call(connection, *words, blocks=blocks))

    async def _try_call(self, connection: SharedConnection, *words: str, blocks: float = 0.0) -> object:
        try:
            return await connection.call(*words, blocks=blocks)
        except ConnectionBroken as error:
            raise connection_broken_error(self._where, str(error)) from error

    def _check(self, reply: object) -> object:
        if isinstance(reply, ErrorReply):
            raise TransportUnavailable(describe_error_reply(reply, self._settings, where=self._where))
        return reply
