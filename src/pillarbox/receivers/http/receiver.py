"""The receiver: an ASGI app on the one side, a consumer's receiver on the other."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Literal

from pillarbox.clock import Clock, SystemClock
from pillarbox.errors import ConfigError, TransportUnavailable
from pillarbox.protocols import Received, ReceiverFeatures
from pillarbox.receivers.http.app import HttpApp
from pillarbox.receivers.http.arrivals import Arrivals, settle
from pillarbox.receivers.http.repeats import Remembered
from pillarbox.signing import signing_key

__all__ = ["HttpReceiver"]

_LARGEST: Final = 2 * 1024 * 1024


class HttpReceiver:
    """The requests that its `app` was sent.

    With `secrets` each request must carry a Standard Webhooks signature by one of them, and is checked before anything
    else is done with it. Mount `app` in Starlette, FastAPI or any ASGI server; several mounts are one receiver.

    A request does not say whether its message came before, perhaps to a process that died of it. So `repeats` are
    `assumed`: the consumer counts the starts of every message, which costs a small transaction each. `remembered`
    spares that, and knows only of messages that this receiver itself has had in its hands.
    """

    def __init__(
        self,
        *,
        secrets: Sequence[str] = (),
        source: str = "http:",
        repeats: Literal["assumed", "remembered"] = "assumed",
        waiting: int = 1_000,
        timeout: timedelta = timedelta(seconds=30),
        largest: int = _LARGEST,
        clock: Clock | None = None,
    ) -> None:
        if waiting < 1 or largest < 1 or timeout <= timedelta(0):
            raise ConfigError("The options waiting, largest and timeout of the http receiver must be over 0.")
        self.features = ReceiverFeatures(name="http")
        self.app = HttpApp(
            self,
            keys=[signing_key(secret) for secret in secrets],
            source=source,
            timeout=timeout.total_seconds(),
            largest=largest,
            clock=clock or SystemClock(),
        )
        """The ASGI app to mount."""
        self._repeats = repeats
        self._waiting = waiting
        self._remembered = Remembered()
        self._arrivals: Arrivals | None = None
        """None while no consumer has opened this."""
        self._is_down = False
        """The web server has told that it shuts down."""

    # --- for the consumer ---

    async def open(self) -> None:
        self._insist_on_server()
        self._arrivals = Arrivals(most=self._waiting)

    async def close(self) -> None:
        if self._arrivals is not None:
            arrivals, self._arrivals = self._arrivals, None
            arrivals.close()

    async def ping(self) -> None:
        self._opened()

    async def receive(self, *, limit: int) -> Sequence[Received]:
        while True:
            arrivals = self._opened()
            if taken := arrivals.take(limit):
                for received in taken:
                    self._mark(received)
                return taken
            await arrivals.wait()

    async def acknowledge(self, received: Received) -> None:
        self._remembered.forget(received.plain.message_id)
        settle(received, handled=True)

    async def give_back(self, received: Received) -> None:
        settle(received, handled=False)

    def _opened(self) -> Arrivals:
        if self._arrivals is None:
            raise TransportUnavailable("The http receiver is not open; run its consumer.")
        self._insist_on_server()
        return self._arrivals

    def _insist_on_server(self) -> None:
        if self._is_down:
            raise TransportUnavailable("The web server of the http receiver has shut down; start it again.")

    def _mark(self, received: Received) -> None:
        message_id = received.plain.message_id
        received.redelivered = self._repeats == "assumed" or message_id in self._remembered
        if self._repeats == "remembered":
            self._remembered.add(message_id)

    # --- for the app, in the web server's thread ---

    def put(self, received: Received) -> str | None:
        """A request came, and waits. A sentence: nobody takes it."""
        arrivals = self._arrivals
        if arrivals is None:
            return "Nobody handles messages here now."
        return None if arrivals.put(received) else "Too many messages wait here."

    def drop(self, received: Received) -> None:
        """Its request was answered, or its sender hung up."""
        if (arrivals := self._arrivals) is not None:
            arrivals.drop(received)

    def serving(self, is_up: bool) -> None:
        """The web server has started, or shuts down."""
        self._is_down = not is_up
        if (arrivals := self._arrivals) is not None:
            arrivals.wake()
