"""The consumer group: what is said about it to the server, and its answers."""

from __future__ import annotations

from typing import Final

from pillarbox.errors import TransportUnavailable
from pillarbox.receivers.redis.deliveries import Claimed, Read, claimed, ids_in, place, read
from pillarbox.receivers.redis.reasons import is_missing, said
from pillarbox.receivers.redis.settings import GIVEN_BACK, RedisReceiverSettings
from pillarbox.receivers.redis.wire import Wire
from pillarbox.transports.redis.link import LinkBroken
from pillarbox.transports.redis.verdicts import Refusal

__all__ = ["Group"]

_PAGE: Final = 1_000
_REMOVE: Final = (
    "if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) == 0 then "
    "return redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2]) end"
)
"""In one step: what a consumer has in hand is forgotten with it, and never delivered again."""


class Group:
    """One consumer in one group. `TransportUnavailable` with a sentence for whatever the server refuses."""

    def __init__(self, settings: RedisReceiverSettings, *, name: str, where: str) -> None:
        self.name = name
        self._settings = settings
        self._where = where
        self._at = (settings.stream, settings.group)
        self._idle = str(round(settings.claim_after.total_seconds() * 1000))

    async def see_to(self, wire: Wire) -> None:
        """See that the group is there; make it, if it is not and it is ours to make."""
        reply = await self._reply(wire, "XPENDING", *self._at)
        if is_missing(reply) and self._settings.declare:
            reply = await self._reply(wire, "XGROUP", "CREATE", *self._at, "0", "MKSTREAM")
            if isinstance(reply, Refusal) and reply.code == "BUSYGROUP":  # somebody else made it just now
                return
        self._insist(reply)

    # --- reading ---

    async def own(self, wire: Wire, *, after: str, limit: int) -> Read:
        """What the server has down as ours, from before this connection."""
        return read(await self._read(wire, after, "COUNT", str(limit)), redelivered=True)

    async def fresh(self, wire: Wire, *, limit: int, seconds: float) -> Read:
        """What nobody has had, waiting for it so long."""
        milliseconds = str(max(1, round(seconds * 1000)))  # 0 would be for ever
        words = ("COUNT", str(limit), "BLOCK", milliseconds)
        return read(await self._read(wire, ">", *words, blocks=seconds), redelivered=False)

    async def abandoned(self, wire: Wire, *, cursor: str, limit: int) -> Claimed:
        """Take over what its consumer has given no sign of for too long, and what was given back."""
        words = ("XAUTOCLAIM", *self._at, self.name, self._idle, cursor, "COUNT", str(limit))
        return claimed(await self._answer(wire, *words))

    async def _read(self, wire: Wire, start: str, *options: str, blocks: float = 0.0) -> object:
        stream, group = self._at
        words = ("XREADGROUP", "GROUP", group, self.name, *options, "STREAMS", stream, start)
        return await self._answer(wire, *words, blocks=blocks)

    # --- settling ---

    async def acknowledge(self, wire: Wire, *ids: str) -> None:
        await self._answer(wire, "XACK", *self._at, *ids)

    async def give_back(self, wire: Wire, *ids: str) -> None:
        """For anybody to take over, at once."""
        await self._answer(wire, "XCLAIM", *self._at, GIVEN_BACK, "0", *ids, "TIME", "0", "JUSTID")

    async def keep(self, wire: Wire, ids: set[str]) -> None:
        """A sign of life for what is in hand. What another has taken over meanwhile is left to it."""
        first, *_, last = sorted(ids, key=place) * 2
        ours = ids.intersection(await self._ours(wire, first, last, count=2 * len(ids) + _PAGE))
        if ours:
            await self._answer(wire, "XCLAIM", *self._at, self.name, "0", *ours, "JUSTID")

    async def leave(self, wire: Wire) -> None:
        """Give back all that we have, and be no consumer of the group any more, unless we still have something."""
        while ids := await self._ours(wire, "-", "+", count=_PAGE):
            await self.give_back(wire, *ids)
        stream, group = self._at
        await self._reply(wire, "EVAL", _REMOVE, "1", stream, group, self.name)

    async def _ours(self, wire: Wire, first: str, last: str, *, count: int) -> list[str]:
        return ids_in(await self._answer(wire, "XPENDING", *self._at, first, last, str(count), self.name))

    # --- replies ---

    async def _answer(self, wire: Wire, *words: str, blocks: float = 0.0) -> object:
        return self._insist(await self._reply(wire, *words, blocks=blocks))

    async def _reply(self, wire: Wire, *words: str, blocks: float = 0.0) -> object:
        try:
            return await wire.ask(*words, blocks=blocks)
        except LinkBroken as error:
            raise TransportUnavailable(f"The connection to {self._where} broke ({error}).") from error

    def _insist(self, reply: object) -> object:
        if isinstance(reply, Refusal):
            raise TransportUnavailable(said(reply, self._settings, where=self._where))
        return reply
