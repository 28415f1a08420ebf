"""Webhooks: each message is one request to one endpoint."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

from pillarbox.clock import Clock, SystemClock
from pillarbox.errors import ConfigError, MessageRejected, TransportUnavailable
from pillarbox.message import Message
from pillarbox.protocols import Outcome, TransportFeatures
from pillarbox.signing import signing_key
from pillarbox.transports.http.checks import is_header
from pillarbox.transports.http.connection import Connection, NoAnswer
from pillarbox.transports.http.lookup import Lookup, system_lookup
from pillarbox.transports.http.requests import Form, request_for
from pillarbox.transports.http.settings import HttpSettings, http_settings
from pillarbox.transports.http.verdicts import Policy, outcome_of
from pillarbox.transports.secret import Secret, hidden
from pillarbox.transports.tls import tls_context
from pillarbox.transports.urls import TransportUrl, shown

__all__ = ["HttpTransport", "http_transport"]

_AWAY: Final = frozenset({502, 503, 504})
"""What a gateway answers when nobody is behind it."""


class HttpTransport:
    """Sends messages as CloudEvents to an HTTP endpoint, signed if there is a secret.

    Delivered means that the endpoint answered 2xx, completely and in time. Secrets are read when this is made.
    """

    def __init__(
        self,
        settings: HttpSettings,
        *,
        clock: Clock | None = None,
        lookup: Lookup = system_lookup,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.features = TransportFeatures(name="http", batch=1)
        self.settings = settings
        self._clock = SystemClock() if clock is None else clock
        secrets = [secret.read(option="secret", environ=environ) for secret in settings.secret]
        headers = _read_headers(settings, environ)
        query = _read(settings.query, "query", environ)
        self._form = Form(mode=settings.mode, keys=[signing_key(secret) for secret in secrets], headers=headers)
        hide = [form for value in (*secrets, *headers.values(), *query.values()) for form in _forms(value)]
        where = shown(settings.url)
        self._policy = Policy(
            where=where, rejects=settings.rejects, gone=settings.gone, hide=lambda text: hidden(text, hide)
        )
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._connection = Connection(
            _with_query(settings.url, query),
            where=where,
            timeout=settings.timeout,
            limit=settings.concurrency,
            tls=None if settings.url.startswith("http:") else tls_context(settings, transport="http", where=where),
            allow_private=settings.allow_private,
            lookup=lookup,
        )

    def __repr__(self) -> str:
        return f"HttpTransport({self.settings!r})"

    async def open(self) -> None:
        await self._connection.open()
        try:
            await self.ping()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._connection.close()

    async def ping(self) -> None:
        """Ask with HEAD. Any answer shows that somebody is there, but a gateway's that says nobody is."""
        try:
            answer = await self._connection.exchange("HEAD", headers=self._form.headers)
        except NoAnswer as error:
            raise TransportUnavailable(str(error)) from error
        if answer.status in _AWAY:
            outcome = outcome_of(answer, self._policy, now=self._clock.now())
            raise TransportUnavailable(outcome.error or "", retry_after=outcome.retry_after)

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return [await self._deliver(message) for message in messages]

    async def _deliver(self, message: Message) -> Outcome:
        # The wait for a slot is outside the timeout: a queue here is not the endpoint's fault.
        async with self._slots:
            try:
                request = request_for(message, self._form, at=self._clock.now())
                answer = await self._connection.exchange(
                    self.settings.method, headers=request.headers, body=request.body
                )
            except MessageRejected as error:
                return Outcome(delivered=False, error=str(error), rejected=True)
            except NoAnswer as error:
                return Outcome(delivered=False, error=str(error))
        return outcome_of(answer, self._policy, now=self._clock.now())


def http_transport(url: TransportUrl) -> HttpTransport:
    """For `http:` and `https:`."""
    return HttpTransport(http_settings(url))


def _read(values: Mapping[str, Secret], option: str, environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value.read(option=f"{option}.{name}", environ=environ) for name, value in values.items()}


def _read_headers(settings: HttpSettings, environ: Mapping[str, str]) -> dict[str, str]:
    headers = _read(settings.headers, "headers", environ)
    for name, value in headers.items():
        if not is_header(name, value):
            raise ConfigError(f"The value of the option headers.{name} holds a control character; remove it.")
    return headers


def _forms(value: str) -> Sequence[str]:
    """How a secret may turn up in an answer: whole, or without what stands before it, as in `Bearer …`."""
    return value, *value.split()[1:], value.removeprefix("whsec_"), quote(value, safe="")


def _with_query(url: str, query: Mapping[str, str]) -> str:
    pairs = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query.items())
    return f"{url}?{pairs}" if pairs else url
