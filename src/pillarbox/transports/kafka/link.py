"""A connection to a cluster that is made when it is needed, and given up as a whole when it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from pillarbox.errors import TransportUnavailable
from pillarbox.transports.kafka.client_settings import ClientConfig
from pillarbox.transports.kafka.producing import Producing, check_config
from pillarbox.transports.kafka.reach import Reach
from pillarbox.transports.kafka.records import Record
from pillarbox.transports.kafka.verdicts import Answer, Verdict

__all__ = ["Link"]

_ANY_TOPIC: Final = "__pillarbox_ping"
"""What to ask for when any answer will do. It is never created."""


class Link:
    """One client at a time. Wrong settings are a `ConfigError` at once."""

    def __init__(self, config: ClientConfig, *, where: str, seconds: float, hide: Callable[[str], str]) -> None:
        self._config = config
        self._where = where
        self._seconds = seconds
        self._reach = Reach(hide=hide)
        self._client: Producing | None = None
        check_config(config, told=self._reach.told)

    @property
    def down(self) -> str | None:
        """Why no broker can be reached, as far as is known."""
        return self._reach.down

    def drop(self, reason: str) -> None:
        """Give the client up with all that is in it. Nothing of that is sent any more; the next call makes another."""
        if self._client is not None:
            client, self._client = self._client, None
            client.end(reason)

    async def ask(self, topic: str = _ANY_TOPIC) -> Answer:
        """What the cluster says about a topic; `TransportUnavailable` when it says nothing."""
        try:
            return await self._opened().ask(topic, seconds=self._seconds)
        except TransportUnavailable as error:
            raise TransportUnavailable(
                f"{self._where} cannot be reached ({error}): check that it runs, the URL's hosts and ports, and the "
                "login."
            ) from error

    async def send(self, records: Sequence[Record]) -> list[Answer]:
        """One answer per record, in time. Begins only when the cluster can be reached, as far as is known.

        Cancelled, it takes back what is in the client, unless other sends have something in it too.
        """
        if self.down is not None:
            await self.ask()
        client = self._opened()
        try:
            answers = await client.send(records, seconds=self._seconds)
        except asyncio.CancelledError:
            if client is self._client and client.is_idle:
                self.drop("the send was cancelled")
            raise
        if not any(answer.verdict is Verdict.SILENT for answer in answers):
            self._reach.answered()
        elif self.down is not None and client is self._client:
            # What was not sent in time must not be sent later, when the message goes again.
            self.drop(self.down)
        return answers

    def _opened(self) -> Producing:
        if self._client is None:
            self._client = Producing(self._config, reach=self._reach, on_fatal=self.drop)
        return self._client
