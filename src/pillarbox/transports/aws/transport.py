"""What the transports for queues and for topics have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.protocols import Outcome
from pillarbox.transports.aws.client import AwsClient, NoAnswer, Refused
from pillarbox.transports.aws.entries import Packer
from pillarbox.transports.aws.sending import Places, Sender
from pillarbox.transports.aws.settings import AwsSettings
from pillarbox.transports.aws.verdicts import Verdict, Words, told

__all__ = ["AwsTransport", "CheckedPlaces"]


class CheckedPlaces(Places, Protocol):
    """Places that can be asked for without a message."""

    async def check(self, name: str | None) -> None:
        """Ask for this one, or for any."""


class AwsTransport:
    """Sends messages as CloudEvents, up to ten with one call."""

    def __init__(
        self,
        settings: AwsSettings,
        client: AwsClient,
        places: CheckedPlaces,
        *,
        pack: Packer,
        one: str | None,
        words: Words,
    ) -> None:
        self._settings = settings
        self._client = client
        self._places = places
        self._one = one
        """The only place, if there is but one."""
        self._words = words
        self._sender = Sender(places, pack=pack, most=pack.most, words=words)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings!r})"

    async def open(self) -> None:
        await self._client.open()
        try:
            await self.ping()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._client.close()

    async def ping(self) -> None:
        """Ask for the one place there is, or for any: then a no to the question still shows that somebody is there."""
        try:
            await self._places.check(self._one)
        except NoAnswer as error:
            raise TransportUnavailable(str(error)) from error
        except Refused as error:
            if self._one is not None or error.why.verdict is not Verdict.DENIED:
                raise TransportUnavailable(told(error.why, self._one or "any", self._words)) from error

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return await self._sender.send(messages)
