"""NATS JetStream: a durable pull consumer, read with explicit acknowledgement."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self

import msgspec

from pillarbox.brokers.errors import connection_broken_error
from pillarbox.brokers.held_bytes import HeldBytes, count_bytes
from pillarbox.brokers.nats.connection import Server, close_client, connect_client
from pillarbox.brokers.nats.encoding import Delivery, parse_delivery, to_incoming_message
from pillarbox.brokers.nats.errors import describe_error
from pillarbox.brokers.nats.settings import NAME, NatsReceiverSettings, nats_receiver_settings
from pillarbox.brokers.nats.streams import ConsumerState, ensure_consumer, find_ack_wait, find_horizon
from pillarbox.brokers.reconnecting import ReconnectingConnection
from pillarbox.brokers.settings import TransportUrl
from pillarbox.contracts.receiver import IncomingMessage, ReceiverFeatures
from pillarbox.errors import TransportUnavailable
from pillarbox.hosts import connect_first
from pillarbox.tasks import check_cancelled

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

__all__ = ["NatsReceiver", "RedeliveryBarrier", "nats_receiver"]

_PING_INTERVAL: Final = 10
"""Seconds. The client gives up on a server that leaves two pings unanswered."""
_EXPIRES: Final = 30.0
"""Seconds that a pull request waits at the server."""
_NAK_DELAY: Final = 0.05
"""Seconds in which messages that are given back are collected, to be sent back in the stream's order."""
_BARRIER_POLL: Final = 0.25
"""Seconds between two looks at the consumer's state while the barrier is up."""
_BARRIER_SLACK: Final = 5.0
"""Seconds that a busy server may take longer."""
_CLOSE_TIMEOUT: Final = 5.0
_ACK: Final = b"+ACK"
_NAK: Final = b"-NAK"
_IN_PROGRESS: Final = b"+WPI"
_HEARTBEAT_STATUS: Final = "100"
_EXPIRED_STATUSES: Final = frozenset({"404", "408"})
"""A pull request ended, because nothing came in time."""
_NEXT_IS_LARGE: Final = ("409", "Message Size Exceeds MaxBytes")
"""A pull request ended, because the next message is larger than what is left of its `max_bytes`."""
_FULL_STATUSES: Final = frozenset({_NEXT_IS_LARGE, ("409", "Batch Completed")})
"""A pull request ended, because its `max_bytes` are used up."""


class NatsReceiver:
    """Reads one durable consumer. Secrets are read when this is built.

    While a message is being handled the server hears of it, and does not deliver it again, however long its handler
    takes. A connection that broke is replaced by the next `receive` or `ping`, not in the background.
    """

    def __init__(self, settings: NatsReceiverSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        self.features = ReceiverFeatures(name=NAME)
        """The horizon is the stream's `max_age`, and known once this is open."""
        self.settings = settings
        self._held = HeldBytes()
        self._server = Server.from_settings(settings, environ=environ)
        self._subscription = ReconnectingConnection(
            lambda: PullSubscription.connect(self._server, settings, held=self._held), owner="nats receiver"
        )

    def __repr__(self) -> str:
        return f"NatsReceiver({self.settings!r})"

    @property
    def pending_bytes(self) -> int:
        return self._held.limit

    @pending_bytes.setter
    def pending_bytes(self, limit: int) -> None:
        self._held.limit = limit

    async def open(self) -> None:
        await self._subscription.open()
        try:
            subscription = await self._subscription.get()
            horizon = await find_horizon(subscription.client, self.settings)
        except BaseException:
            await self.close()
            raise
        self.features = ReceiverFeatures(name=NAME, horizon=horizon)

    async def close(self) -> None:
        await self._subscription.close()
        self._held.clear()

    async def ping(self) -> None:
        """Look up the durable consumer, and declare it again, in case somebody removed it."""
        subscription = await self._subscription.get()
        await ensure_consumer(subscription.client, self.settings, where=self._server.where)

    async def receive(self, *, limit: int) -> Sequence[IncomingMessage]:
        subscription = await self._subscription.get()
        stream = self.settings.stream
        return [
            to_incoming_message(delivery, stream=stream, token=(subscription, delivery.reply))
            for delivery in await subscription.take(limit)
        ]

    async def acknowledge(self, received: IncomingMessage) -> None:
        subscription, reply = received.token
        self._held.remove(received.token)
        if self._subscription.is_current(subscription):
            await subscription.acknowledge(reply)

    async def give_back(self, received: IncomingMessage) -> None:
        subscription, reply = received.token
        self._held.remove(received.token)
        if self._subscription.is_current(subscription):
            await subscription.give_back(reply)


def nats_receiver(url: TransportUrl) -> NatsReceiver:
    """Build the receiver for `nats:`."""
    return NatsReceiver(nats_receiver_settings(url))


class RedeliveryBarrier:
    """Holds back messages until those that other receivers left unacknowledged have come back.

    If the others are dead, the server redelivers their messages after `ack_wait`. Newer messages that are handed out
    before that would break the stream's order.
    """

    def __init__(self, state: ConsumerState, *, now: float, ack_wait: float, expires: float) -> None:
        self._last = state.delivered
        self._unacknowledged = state.unacknowledged
        self._redelivered_at = now + ack_wait
        self._alive_at = now + 1.5 * ack_wait + _BARRIER_SLACK
        """From here on, whoever still has messages must be alive."""
        self._dead_until = now + expires + _BARRIER_SLACK
        """Until here a waiting pull request may be that of a dead receiver; a later one is not."""

    def is_over(self, state: ConsumerState, *, in_hand: int, requests: int, now: float) -> bool:
        """Return True when all are acknowledged or in our own hands, or the others are alive and share the work.

        `requests` is the number of waiting pull requests that are ours.
        """
        if state.floor >= self._last or state.unacknowledged <= in_hand:
            return True
        return now >= self._alive_at or (now >= self._dead_until and state.waiting > requests)

    def is_redelivered(self, *, now: float) -> bool:
        """Return True when the server delivers what dead receivers had before it delivers anything else."""
        return now >= self._redelivered_at

    def is_newer(self, sequence: int) -> bool:
        """Return True for a message that no other receiver had."""
        return sequence > self._last

    def may_pull(self, *, newest: int, in_hand: int, limit: int, now: float) -> bool:
        """Return True if more messages may be pulled."""
        # The server redelivers before it delivers anything new, so newer messages mean that nothing was redelivered
        # yet: more of them would only pile up here.
        return (newest <= self._last or self.is_redelivered(now=now)) and in_hand < self._unacknowledged + 2 * limit


class PullSubscription:
    """Pulls messages, keeps the ones in hand from being redelivered, and acknowledges them.

    Up until `reason` says why it broke.
    """

    def __init__(self, server: Server, settings: NatsReceiverSettings, *, held: HeldBytes) -> None:
        self.client = server.build_client()
        self._held = held
        self._is_next_large = False
        """The next message of the stream does not fit into the room that the last request named."""
        self.reason: str | None = None
        self._where = server.where
        self._settings = settings
        self._pull_subject = f"$JS.API.CONSUMER.MSG.NEXT.{settings.stream}.{settings.durable}"
        self._inbox = ""
        self._messages: Subscription | None = None
        self._waiting: deque[Delivery] = deque()
        self._changed = asyncio.Event()
        self._request = 0
        """The number of the latest pull request."""
        self._outstanding = 0
        """The number of messages it may still bring."""
        self._request_ends_at = 0.0
        """When the server has forgotten it, at the latest."""
        self._in_hand: dict[str, int] = {}
        """Reply subject to number in the stream, of all that came and is neither acknowledged nor given back."""
        self._to_give_back: dict[str, int] = {}
        """The same of what is about to be given back."""
        self._barrier: RedeliveryBarrier | None = None
        self._barrier_poll = _BARRIER_POLL
        self._heartbeat: asyncio.Task[None] | None = None
        self._nak_timer: asyncio.TimerHandle | None = None

    @classmethod
    async def connect(cls, server: Server, settings: NatsReceiverSettings, *, held: HeldBytes) -> Self:
        """Subscribe to the durable consumer; raise `TransportUnavailable` when that is not possible."""

        async def connect_to(address: str, seconds: float) -> Self:
            # A new one for each address: a client that failed reports its end to the subscription it belongs to.
            subscription = cls(server, settings, held=held)
            await connect_client(
                subscription.client,
                server,
                address,
                seconds=seconds,
                on_closed=subscription._on_closed,
                ping_interval=_PING_INTERVAL,
            )
            return subscription

        subscription: Self = await connect_first(
            server.addresses, connect_to, seconds=server.seconds, errors=TransportUnavailable
        )
        try:
            held.on_room = subscription._changed.set
            await subscription._start()
        except BaseException:
            await subscription.close()
            raise
        return subscription

    async def _start(self) -> None:
        info = await ensure_consumer(self.client, self._settings, where=self._where)
        self._inbox = self.client.new_inbox()
        self._messages = await self.client.subscribe(
            f"{self._inbox}.*", cb=self._on_message, pending_msgs_limit=0, pending_bytes_limit=0
        )
        ack_wait = find_ack_wait(info.config)
        state = ConsumerState.from_info(info)
        if state.unacknowledged:
            now = asyncio.get_running_loop().time()
            self._barrier = RedeliveryBarrier(state, now=now, ack_wait=ack_wait, expires=_EXPIRES)
            self._barrier_poll = min(_BARRIER_POLL, ack_wait / 20)
        self._heartbeat = asyncio.create_task(self._send_heartbeats(ack_wait / 3))

    async def take(self, limit: int) -> list[Delivery]:
        """Return at least one message, in the stream's order; raise `TransportUnavailable` as soon as this breaks."""
        await self._send_naks()
        if self._barrier is not None:
            await self._wait_for_redeliveries(self._barrier, limit)
        while True:
            check_cancelled()
            if self.reason is not None:
                raise TransportUnavailable(self.reason)
            if self._waiting:
                return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
            self._changed.clear()
            await self._pull(limit)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(None if self._held.is_full else self._request_ends_at):
                    await self._changed.wait()

    async def _wait_for_redeliveries(self, barrier: RedeliveryBarrier, limit: int) -> None:
        """Collect messages until the barrier is over, and put all of them into the stream's order."""
        clock = asyncio.get_running_loop().time
        while self.reason is None:
            check_cancelled()
            # Counted before the server is asked: its answer does not include what comes meanwhile. As a set, because
            # one message may have come twice.
            requests, in_hand = int(self._outstanding > 0), len({*self._in_hand.values()})
            info = await ensure_consumer(self.client, self._settings, where=self._where)
            if barrier.is_over(ConsumerState.from_info(info), in_hand=in_hand, requests=requests, now=clock()):
                break
            if self._held.is_full and self._waiting and barrier.is_redelivered(now=clock()):
                # There is no room for the rest of the old ones. Newer ones make room for them.
                newer = [delivery for delivery in self._waiting if barrier.is_newer(delivery.sequence)]
                if not newer:
                    break
                await self._return_waiting(newer)
            newest = max((delivery.sequence for delivery in self._waiting), default=0)
            if barrier.may_pull(newest=newest, in_hand=in_hand, limit=limit, now=clock()):
                await self._pull(limit)
            await asyncio.sleep(self._barrier_poll)
        self._waiting = deque(sorted(self._waiting, key=lambda delivery: delivery.sequence))
        self._barrier = None

    async def _return_waiting(self, deliveries: Sequence[Delivery]) -> None:
        replies = {delivery.reply for delivery in deliveries}
        self._waiting = deque(delivery for delivery in self._waiting if delivery.reply not in replies)
        for reply in replies:
            self._held.remove((self, reply))
            self._to_give_back[reply] = self._in_hand.pop(reply)
        await self._send_naks()

    async def _pull(self, limit: int) -> None:
        """Send a pull request, unless an earlier one may still bring something, or too many bytes are held."""
        now = asyncio.get_running_loop().time()
        if self._held.is_full:
            return
        if self._outstanding > 0 and now < self._request_ends_at:
            return
        self._request, self._outstanding = self._request + 1, limit
        self._request_ends_at = now + _EXPIRES + _CLOSE_TIMEOUT
        request = {"batch": limit, "expires": round(_EXPIRES * 1_000_000_000)}
        if self._is_next_large:
            request["batch"] = self._outstanding = 1
        else:
            request["max_bytes"] = self._held.room
        self._is_next_large = False
        body = msgspec.json.encode(request)
        await self._publish({self._pull_subject: body}, reply=f"{self._inbox}.{self._request}")

    async def acknowledge(self, reply: str) -> None:
        """Write the acknowledgement, without waiting for the server: a lost one means a redelivery."""
        if self.reason is None and self._in_hand.pop(reply, None) is not None:
            await self._publish({reply: _ACK})

    async def give_back(self, reply: str) -> None:
        """Give a message back soon, together with others: the server redelivers in the order of the requests."""
        if self.reason is None and reply in self._in_hand:
            self._to_give_back[reply] = self._in_hand.pop(reply)
            if self._nak_timer is None:
                loop = asyncio.get_running_loop()
                self._nak_timer = loop.call_later(_NAK_DELAY, lambda: loop.create_task(self._send_naks()))

    async def close(self) -> None:
        """Give back what is in hand, so that it is redelivered at once, and disconnect."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._end_pull_request()
                self._to_give_back |= self._in_hand
                self._in_hand.clear()
                await self._send_naks()
                await self.client.flush(timeout=round(_CLOSE_TIMEOUT))
        self._break("it was closed")
        await close_client(self.client)

    async def _end_pull_request(self) -> None:
        """Have the server forget our pull request: it would answer it with what is given back now.

        A server of version 2.9 even loses the first message that it redelivers to a request whose client is gone, until
        `ack_wait` ends. It forgets such requests when it counts them, for the consumer's state.
        """
        if self._messages is not None and self._outstanding > 0:
            await self._messages.drain()  # type: ignore[no-untyped-call]
            await ensure_consumer(self.client, self._settings, where=self._where)

    def _break(self, why: str) -> None:
        if self.reason is None:
            self.reason = str(connection_broken_error(self._where, why))
        for delivery in self._waiting:
            self._held.remove((self, delivery.reply))
        self._waiting.clear()
        self._changed.set()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if self._nak_timer is not None:
            self._nak_timer.cancel()

    async def _send_naks(self) -> None:
        replies, self._to_give_back = self._to_give_back, {}
        if self._nak_timer is not None:
            self._nak_timer.cancel()
            self._nak_timer = None
        if replies:
            await self._publish(dict.fromkeys(sorted(replies, key=replies.__getitem__), _NAK))

    async def _send_heartbeats(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self._publish(dict.fromkeys(self._in_hand, _IN_PROGRESS))

    async def _publish(self, bodies: dict[str, bytes], *, reply: str = "") -> None:
        try:
            for subject, body in bodies.items():
                await self.client.publish(subject, body, reply=reply)
        except Exception as error:
            self._break(describe_error(error))

    # --- called by the client ---

    async def _on_message(self, message: Msg) -> None:
        delivery = parse_delivery(message)
        if delivery is None:
            self._on_status(message)
        elif self.reason is None:
            self._in_hand[delivery.reply] = delivery.sequence
            self._waiting.append(delivery)
            self._held.add((self, delivery.reply), count_bytes(message.headers or {}, message.data))
            self._outstanding -= 1
            self._changed.set()

    def _on_status(self, message: Msg) -> None:
        """Handle the status of a pull request. That of an earlier request is out of date."""
        headers = message.headers or {}
        status, text = headers.get("Status", ""), headers.get("Description", "")
        if status == _HEARTBEAT_STATUS or not message.subject.endswith(f".{self._request}"):
            return
        if status in _EXPIRED_STATUSES or (status, text) in _FULL_STATUSES:
            self._is_next_large = (status, text) == _NEXT_IS_LARGE
            self._outstanding = 0
            self._changed.set()
        else:
            self._break(f"it brings no messages: {status} {text}".strip())

    async def _on_closed(self) -> None:
        self._break(describe_error(self.client.last_error) if self.client.last_error else "the server hung up")
