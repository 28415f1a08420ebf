"""HTTP receiver: takes messages from the requests that its ASGI app was sent."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Literal

from pillarbox.brokers.http.asgi import HttpApp, Limits, PlainIdentity
from pillarbox.brokers.http.signing import signing_key
from pillarbox.clock import Clock, SystemClock
from pillarbox.contracts.receiver import IncomingMessage, ReceiverFeatures
from pillarbox.durations import check_duration
from pillarbox.errors import ConfigError, TransportUnavailable

__all__ = ["HttpReceiver", "RedeliveryMemory"]

_LARGEST: Final = 2 * 1024 * 1024
_BUFFERED: Final = 64 * 1024 * 1024
_MEMORY_LIMIT: Final = 10_000


class HttpReceiver:
    """Receives the requests that its `app` was sent.

    With `secrets` each request must carry a Standard Webhooks signature by one of them, and is checked before anything
    else is done with it. The signature covers the id and the body alone, so nothing else identifies or selects: a
    CloudEvent is taken in structured mode only, and a plain message has `topic` in place of the path. Mount `app` in
    Starlette, FastAPI or any ASGI server; several mounts are one receiver.

    A request does not tell whether its message was sent before, perhaps to a process that it killed. So `repeats` are
    `assumed`: the consumer counts the starts of every message, which costs a small transaction each. `remembered`
    saves that cost, and recognises only messages that this receiver itself has handed out.
    """

    def __init__(
        self,
        *,
        secrets: Sequence[str] = (),
        source: str = "http:",
        topic: str | None = None,
        repeats: Literal["assumed", "remembered"] = "assumed",
        waiting: int = 1_000,
        timeout: timedelta = timedelta(seconds=30),
        largest: int = _LARGEST,
        body_timeout: timedelta = timedelta(seconds=10),
        buffered: int = _BUFFERED,
        clock: Clock | None = None,
    ) -> None:
        check_duration(timeout, "timeout")
        check_duration(body_timeout, "body_timeout")
        if waiting < 1 or largest < 1 or min(timeout, body_timeout) <= timedelta(0):
            raise ConfigError(
                "The options waiting, largest, timeout and body_timeout of the http receiver must be over 0."
            )
        if buffered < largest:
            raise ConfigError(
                "The option buffered of the http receiver is the limit of all bodies together: it must be at least "
                "as large as largest, the limit of one."
            )
        self.features = ReceiverFeatures(name="http")
        self.app = HttpApp(
            self,
            keys=[signing_key(secret) for secret in secrets],
            identity=PlainIdentity(source=source, topic=topic),
            limits=Limits(
                answer_seconds=timeout.total_seconds(),
                body_seconds=body_timeout.total_seconds(),
                body_bytes=largest,
                buffered_bytes=buffered,
            ),
            clock=clock or SystemClock(),
        )
        """The ASGI app to mount."""
        self._buffered = buffered
        self._repeats = repeats
        self._waiting = waiting
        self._memory = RedeliveryMemory()
        self._mailbox: _Mailbox | None = None
        """None while no consumer has opened this."""
        self._is_server_down = False

    # --- for the consumer ---

    @property
    def pending_bytes(self) -> int:
        return self.app.buffered_bytes

    @pending_bytes.setter
    def pending_bytes(self, limit: int) -> None:
        self.app.buffered_bytes = min(limit, self._buffered)

    async def open(self) -> None:
        self._check_server()
        self._mailbox = _Mailbox(limit=self._waiting)

    async def close(self) -> None:
        if self._mailbox is not None:
            mailbox, self._mailbox = self._mailbox, None
            mailbox.close()

    async def ping(self) -> None:
        self._get_mailbox()

    async def receive(self, *, limit: int) -> Sequence[IncomingMessage]:
        while True:
            mailbox = self._get_mailbox()
            if taken := mailbox.take(limit):
                for received in taken:
                    self._mark_redelivered(received)
                return taken
            await mailbox.wait()

    async def acknowledge(self, received: IncomingMessage) -> None:
        self._memory.forget(received.fallback.message_id)
        _answer(received, is_handled=True)

    async def give_back(self, received: IncomingMessage) -> None:
        _answer(received, is_handled=False)

    def _get_mailbox(self) -> _Mailbox:
        if self._mailbox is None:
            raise TransportUnavailable("The http receiver is not open; run its consumer.")
        self._check_server()
        return self._mailbox

    def _check_server(self) -> None:
        if self._is_server_down:
            raise TransportUnavailable("The web server of the http receiver has shut down; start it again.")

    def _mark_redelivered(self, received: IncomingMessage) -> None:
        message_id = received.fallback.message_id
        received.redelivered = self._repeats == "assumed" or message_id in self._memory
        if self._repeats == "remembered":
            self._memory.add(message_id)

    # --- for the app, in the web server's thread ---

    def put(self, received: IncomingMessage) -> str | None:
        """Take a message; return a sentence if nobody handles messages or too many wait."""
        mailbox = self._mailbox
        if mailbox is None:
            return "Nobody handles messages here now."
        return None if mailbox.put(received) else "Too many messages wait here."

    def drop(self, received: IncomingMessage) -> None:
        """Forget a message whose request was answered or whose sender has disconnected."""
        if (mailbox := self._mailbox) is not None:
            mailbox.drop(received)

    def set_serving(self, is_serving: bool) -> None:
        """Note that the web server has started or shuts down."""
        self._is_server_down = not is_serving
        if (mailbox := self._mailbox) is not None:
            mailbox.wake()


class _Mailbox:
    """Messages on their way from the web service's loop to the consumer's, in order. Made in the consumer's loop.

    The token of each message is the future that its request waits for: True when it is handled.
    """

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._lock = threading.Lock()
        self._waiting: dict[IncomingMessage, None] = {}
        self._handed_out: set[IncomingMessage] = set()
        """Messages that the consumer has, as long as a request waits for them."""
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    # --- from any thread ---

    def put(self, received: IncomingMessage) -> bool:
        """Add a message; return False if there is no room or the consumer is gone."""
        with self._lock:
            if self._is_closed or len(self._waiting) >= self._limit:
                return False
            self._waiting[received] = None
        return self.wake()

    def drop(self, received: IncomingMessage) -> None:
        """Remove a message whose request is over. If it still waits, it is not handed out any more."""
        with self._lock:
            self._waiting.pop(received, None)
            self._handed_out.discard(received)

    def wake(self) -> bool:
        """Wake up `wait`; return False if the consumer's loop is closed."""
        try:
            self._loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:
            return False
        return True

    # --- from the consumer's loop ---

    async def wait(self) -> None:
        """Wait for a message or for `wake`."""
        self._changed.clear()
        if not self._waiting:
            await self._changed.wait()

    def take(self, limit: int) -> list[IncomingMessage]:
        with self._lock:
            taken = list(self._waiting)[:limit]
            for received in taken:
                del self._waiting[received]
            self._handed_out.update(taken)
        return taken

    def close(self) -> None:
        """Answer every open request that its message was not handled."""
        with self._lock:
            self._is_closed = True
            unanswered = [*self._handed_out, *self._waiting]
            self._waiting.clear()
            self._handed_out.clear()
        for received in unanswered:
            _answer(received, is_handled=False)
        self._changed.set()


def _answer(received: IncomingMessage, *, is_handled: bool) -> None:
    """Answer the request of a message, in the request's own loop. Does nothing if the request is over."""
    future: asyncio.Future[bool] = received.token

    def set_result() -> None:
        if not future.done():
            future.set_result(is_handled)

    with contextlib.suppress(RuntimeError):  # the loop is closed, and the request with it
        future.get_loop().call_soon_threadsafe(set_result)


class RedeliveryMemory:
    """Ids of the latest messages that were handed out and not acknowledged."""

    def __init__(self, *, limit: int = _MEMORY_LIMIT) -> None:
        self._limit = limit
        self._ids: dict[str, None] = {}

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, message_id: str) -> None:
        """Remember a message that is handed out."""
        # Removed first, so that the dict is in order of the last delivery and its first entry is the oldest.
        self._ids.pop(message_id, None)
        self._ids[message_id] = None
        if len(self._ids) > self._limit:
            del self._ids[next(iter(self._ids))]

    def forget(self, message_id: str) -> None:
        """Forget a message that was acknowledged."""
        self._ids.pop(message_id, None)
