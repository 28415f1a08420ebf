"""Finds the way to the broker, again and again, and says in a sentence why there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from pillarbox.errors import TransportUnavailable
from pillarbox.transports.endpoints import Login, endpoint_of
from pillarbox.transports.rabbitmq import frames
from pillarbox.transports.rabbitmq.channel import Channel
from pillarbox.transports.rabbitmq.connection import Connection, Place
from pillarbox.transports.rabbitmq.endings import Closed, Ended
from pillarbox.transports.rabbitmq.publishing import Publisher
from pillarbox.transports.rabbitmq.reasons import NOT_FOUND, disliked, said, unreachable
from pillarbox.transports.rabbitmq.settings import NAME, RabbitmqSettings
from pillarbox.transports.redaction import one_line
from pillarbox.transports.tls import tls_context

__all__ = ["Broker"]


class Broker:
    """One connection to one of the broker's servers, made anew when it is gone and somebody needs it."""

    def __init__(self, settings: RabbitmqSettings, *, environ: Mapping[str, str]) -> None:
        self.where = f"RabbitMQ at {settings.shown}"
        self._settings = settings
        self.places = _places(settings, environ, where=self.where)
        """Its servers, the one that took us last first."""
        self._seconds = settings.timeout.total_seconds()
        self._connecting = asyncio.Lock()
        self._publisher: Publisher | None = None
        self._declared: set[str] = set()
        self._is_open = False

    async def open(self) -> None:
        """Connect, and see that the exchange is there."""
        self._is_open = True
        try:
            await self.ping()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Hang up. What is under way is interrupted."""
        self._is_open = False
        if self._publisher is not None:
            publisher, self._publisher = self._publisher, None
            await publisher.connection.close()

    async def ping(self) -> None:
        """`TransportUnavailable` when the broker does not answer, takes no messages, or lacks the exchange."""
        if not self._settings.has_one_exchange:
            await self._ask(None)
        elif self._settings.declare:
            self._declared.clear()
            await self.declare([self._settings.exchange])
        elif closed := await self._ask(_is_there(self._settings.exchange)):
            raise disliked(closed, where=self.where, exchange=self._settings.exchange)

    async def declare(self, exchanges: Iterable[str]) -> None:
        """Declare those that have not been declared since the channel was made.

        Of many, one that cannot be declared is the trouble of its messages alone: publishing them will show.
        """
        for name in set(exchanges) - self._declared:
            kind = self._settings.exchange_type
            closed = await self._ask(lambda channel: frames.exchange_declare(channel, name, type=kind, passive=False))  # noqa: B023
            if closed is not None and self._settings.has_one_exchange:
                raise disliked(closed, where=self.where, exchange=name)
            self._declared.add(name)

    async def publisher(self) -> Publisher:
        """The channel for messages; `TransportUnavailable` when there is no way to the broker, or it takes none."""
        publisher = self._publisher
        if publisher is None or publisher.reason is not None or not self._is_open:
            async with self._connecting:
                publisher = await self._made()
        if blocked := self.blocked(publisher.connection):
            raise TransportUnavailable(blocked)
        return publisher

    def blocked(self, connection: Connection) -> str | None:
        """Why the broker takes no messages at present, in a sentence."""
        if connection.blocked is None:
            return None
        return f"{self.where} takes no messages at present ({one_line(connection.blocked)}): give it memory or disk."

    async def has_exchange(self, name: str) -> bool:
        """Whether there is one of that name."""
        return self._is_there(await self._ask(_is_there(name)), name)

    async def has_queue(self, name: str) -> bool:
        """Whether there is one of that name."""
        return self._is_there(await self._ask(lambda channel: frames.queue_declare(channel, name)), name)

    def _is_there(self, closed: Closed | None, name: str) -> bool:
        if closed is not None and closed.code != NOT_FOUND:
            raise disliked(closed, where=self.where, exchange=name)
        return closed is None

    # --- the way there ---

    async def _made(self) -> Publisher:
        """A channel on the connection that stands, or on a new one."""
        self._insist_on_open()
        if self._publisher is not None and self._publisher.reason is None:
            return self._publisher
        connection = None if self._publisher is None else self._publisher.connection
        if connection is None or connection.reason is not None:
            connection = await self._connected()
        self._declared.clear()  # what was declared may be what is missing now
        publisher = await self._confirming(connection)
        try:
            self._insist_on_open()
        except TransportUnavailable:
            await connection.close()
            raise
        self._publisher = publisher
        return publisher

    def _insist_on_open(self) -> None:
        if not self._is_open:
            raise TransportUnavailable("The rabbitmq transport is not open; call open() first.")

    async def _connected(self) -> Connection:
        """A connection to the first server that takes us, beginning with the one that did so last."""
        last: TransportUnavailable | None = None
        for place in list(self.places):
            try:
                return await self._connected_to(place)
            except TransportUnavailable as error:
                last = error
                self.places.append(self.places.pop(0))
        raise last or TransportUnavailable(f"{self.where} has no server.")

    async def _connected_to(self, place: Place) -> Connection:
        try:
            async with asyncio.timeout(self._seconds):
                return await Connection.opened(place)
        except (OSError, TimeoutError, Ended, frames.NotAmqp) as error:
            raise unreachable(error, where=self.where) from error

    async def _confirming(self, connection: Connection) -> Publisher:
        try:
            async with asyncio.timeout(self._seconds):
                return await Publisher.confirming(connection)
        except (TimeoutError, Ended, frames.NotAmqp) as error:
            connection.abort("it gave no channel")
            raise TransportUnavailable(f"{self.where} gave no channel ({said(error)}).") from error
        except BaseException:
            connection.abort("it was given up")
            raise

    async def _ask(self, question: Callable[[int], bytes] | None) -> Closed | None:
        """Ask over a channel of its own, or only whether there is one; answers how the broker closed it, if it did.

        A question that the broker dislikes closes the channel, so it must not be the one for messages.
        """
        connection = (await self.publisher()).connection
        try:
            async with asyncio.timeout(self._seconds):
                return await _asked(connection, question)
        except TimeoutError as error:
            connection.abort("it did not answer a question")
            raise TransportUnavailable(f"{self.where} did not answer within {self._seconds:g} s.") from error
        except Ended as error:
            raise TransportUnavailable(f"The connection to {self.where} broke ({said(error)}).") from error


async def _asked(connection: Connection, question: Callable[[int], bytes] | None) -> Closed | None:
    channel = await Channel.opened(connection)
    try:
        if question is not None:
            await channel.ask(question(channel.number))
        await channel.close()
    except Closed as closed:
        if connection.reason is not None:
            raise
        return closed
    except BaseException:
        channel.abandon()
        raise
    return None


def _is_there(exchange: str) -> Callable[[int], bytes]:
    return lambda channel: frames.exchange_declare(channel, exchange, passive=True)


def _places(settings: RabbitmqSettings, environ: Mapping[str, str], *, where: str) -> list[Place]:
    endpoint = endpoint_of(settings.url, port=5671 if settings.is_encrypted else 5672, transport=NAME)
    given = settings.login(endpoint, environ=environ)
    login = Login(given.user or "guest", given.password or ("guest" if given.user is None else ""))
    tls = tls_context(settings, transport=NAME, where=where) if settings.is_encrypted else None
    return [
        Place(host=host, port=port, vhost=endpoint.path or "/", login=login, mechanism=settings.auth.upper(), tls=tls)
        for host, port in endpoint.hosts
    ]
