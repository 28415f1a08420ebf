"""HTTP transport: each message is one request to one endpoint, or with the option batch, each run of a key."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote
from uuid import UUID

from pillarbox.brokers.http.addresses import Lookup, system_lookup
from pillarbox.brokers.http.connection import HttpConnection, NoResponse
from pillarbox.brokers.http.encoding import RequestTemplate, encode, encode_batch
from pillarbox.brokers.http.errors import ResponsePolicy, to_outcome
from pillarbox.brokers.http.settings import HttpSettings, http_settings, is_valid_header
from pillarbox.brokers.http.signing import signing_key
from pillarbox.brokers.send_batch import DELIVERED, ENCODE_ERRORS, UNSENT, describe_encode_error, find_runs
from pillarbox.brokers.settings import TransportUrl
from pillarbox.brokers.tls import build_tls_context
from pillarbox.clock import Clock, SystemClock
from pillarbox.cloudevents import to_structured
from pillarbox.contracts.transport import Outcome, TransportFeatures
from pillarbox.errors import ConfigError, TransportUnavailable
from pillarbox.message import Message
from pillarbox.progress import Slots, note_progress
from pillarbox.redaction import Secret, display_url, hide_secrets

__all__ = ["HttpTransport", "http_transport"]

_log: Final = logging.getLogger(__name__)
_MAX_BATCH: Final = 100
"""Messages of one key in a request."""
_MAX_BATCH_BYTES: Final = 1024 * 1024
"""Bytes of a request with several messages, roughly. Endpoints commonly take more."""
_GATEWAY_ERRORS: Final = frozenset({502, 503, 504})
"""Answers of a gateway that has no server behind it."""


class HttpTransport:
    """Sends messages as CloudEvents to an HTTP endpoint, signed if there is a secret.

    Delivered means that the endpoint answered 2xx, completely and in time. Secrets are read by the constructor.
    """

    def __init__(
        self,
        settings: HttpSettings,
        *,
        clock: Clock | None = None,
        lookup: Lookup = system_lookup,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.features = TransportFeatures(
            name="http",
            batch=_MAX_BATCH if settings.batch else 1,
            readiness=False,
            ping_is_witness=settings.health is not None,
            runs=settings.batch,
            one_key=settings.batch,
        )
        self.settings = settings
        self._clock = SystemClock() if clock is None else clock
        secrets = [secret.read(option="secret", environ=environ) for secret in settings.secret]
        headers = _read_headers(settings, environ)
        query = _read_secrets(settings.query, "query", environ)
        self._template = RequestTemplate(
            mode=settings.used_mode, keys=[signing_key(secret) for secret in secrets], headers=headers
        )
        if secrets and settings.used_mode == "binary":
            _log.warning("mode=binary: the signature covers the payload, and none of the attributes of the event.")
        hidden = [
            variant for value in (*secrets, *headers.values(), *query.values()) for variant in _list_variants(value)
        ]
        where = display_url(settings.url)
        self._policy = ResponsePolicy(
            where=where, rejects=settings.rejects, gone=settings.gone, missing=settings.missing,
            hide=lambda text: hide_secrets(text, hidden),
        )  # fmt: skip
        self._slots = Slots(settings.concurrency)
        self._doubtful: set[UUID] = set()
        """First messages of batches that were not answered."""
        is_plain = settings.url.startswith("http:")
        self._connection = HttpConnection(
            _add_query(settings.url, query),
            where=where,
            timeout=settings.timeout,
            limit=settings.concurrency,
            tls=None if is_plain else build_tls_context(settings, transport="http", where=where),
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
        """Send a HEAD request, or GET the health path.

        Any response to HEAD shows that the endpoint is there, except a gateway's error. The health path answers 2xx.
        """
        health = self.settings.health
        try:
            response = await self._connection.request(
                "HEAD" if health is None else "GET", headers=self._template.headers, path=health
            )
        except NoResponse as error:
            raise TransportUnavailable(str(error)) from error
        if health is not None and not 200 <= response.status <= 299:
            raise TransportUnavailable(f"{self._policy.where} answered {response.status} at its health path.")
        if response.status in _GATEWAY_ERRORS:
            outcome = to_outcome(response, self._policy, now=self._clock.now())
            raise TransportUnavailable(outcome.error or "", retry_after=outcome.retry_after)

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        if not self.settings.batch:
            return [await self._send_one(message) for message in messages]
        outcomes = [UNSENT] * len(messages)
        runs = find_runs(messages)
        in_runs = {index for run in runs for index in run}
        has_answer = False
        for indexes in (*runs, *([index] for index in range(len(messages)) if index not in in_runs)):
            try:
                answers: Sequence[Outcome] = await self._send_run([messages[index] for index in indexes])
            except TransportUnavailable as error:
                if not has_answer:
                    raise
                answers = [Outcome(False, str(error), lost=True), *[UNSENT] * (len(indexes) - 1)]
            has_answer = has_answer or not answers[0].rejected
            for index, answer in zip(indexes, answers, strict=True):
                outcomes[index] = answer
        return outcomes

    async def _send_run(self, run: Sequence[Message]) -> list[Outcome]:
        """Send messages of one key in as few requests as their size allows, each after the answer to the one before."""
        outcomes: list[Outcome] = []
        while len(outcomes) < len(run):
            documents = self._encode_first(run[len(outcomes) :])
            part = run[len(outcomes) :][: max(len(documents), 1)]
            try:
                outcomes += (
                    await self._send_batch(part, documents) if len(part) > 1 else [await self._send_one(part[0])]
                )
            except TransportUnavailable as error:
                if not outcomes:
                    raise
                outcomes.append(Outcome(False, str(error), lost=True))
            if not outcomes[-1].delivered:
                break
        return [*outcomes, *[UNSENT] * (len(run) - len(outcomes))]

    def _encode_first(self, run: Sequence[Message]) -> list[bytes]:
        """Encode the first messages of a run, as many as go in one request."""
        if run[0].message_id in self._doubtful:
            self._doubtful.discard(run[0].message_id)
            return []
        documents: list[bytes] = []
        size = 0
        for message in run:
            try:
                document = to_structured(message)
            except ENCODE_ERRORS:
                break
            size += len(document)
            if documents and size > _MAX_BATCH_BYTES:
                break
            documents.append(document)
        return documents

    async def _send_batch(self, messages: Sequence[Message], documents: Sequence[bytes]) -> list[Outcome]:
        """Send messages in one request. If it is refused, send them one by one until the first that is.

        One answer does not tell which of the messages is the reason.
        """
        async with self._slots.hold():
            encoded = encode_batch(messages, documents, self._template, at=self._clock.now())
            try:
                response = await self._connection.request(
                    self.settings.method, headers=encoded.headers, body=encoded.body
                )
            except NoResponse as error:
                # The first one is tried alone next time, so that it does not pay for another one.
                self._doubtful.add(messages[0].message_id)
                return [Outcome(delivered=False, error=str(error), unanswered=True)]
            note_progress()
        if to_outcome(response, self._policy, now=self._clock.now()).delivered:
            return [DELIVERED] * len(messages)
        outcomes: list[Outcome] = []
        for message in messages:
            outcomes.append(await self._send_one(message))
            if not outcomes[-1].delivered:
                break
        return outcomes

    async def _send_one(self, message: Message) -> Outcome:
        # The wait for a slot is not part of the timeout: a queue here is not the endpoint's fault.
        async with self._slots.hold():
            try:
                encoded = encode(message, self._template, at=self._clock.now())
            except ENCODE_ERRORS as error:
                return Outcome(delivered=False, error=describe_encode_error(error), rejected=True)
            try:
                response = await self._connection.request(
                    self.settings.method, headers=encoded.headers, body=encoded.body
                )
            except NoResponse as error:
                return Outcome(delivered=False, error=str(error), unanswered=True)
            note_progress()
        return to_outcome(response, self._policy, now=self._clock.now())


def http_transport(url: TransportUrl) -> HttpTransport:
    """Build the transport for an `http:` or `https:` URL."""
    return HttpTransport(http_settings(url))


def _read_headers(settings: HttpSettings, environ: Mapping[str, str]) -> dict[str, str]:
    headers = _read_secrets(settings.headers, "headers", environ)
    for name, value in headers.items():
        if not is_valid_header(name, value):
            raise ConfigError(f"The value of the option headers.{name} holds a control character; remove it.")
    return headers


def _read_secrets(values: Mapping[str, Secret], option: str, environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value.read(option=f"{option}.{name}", environ=environ) for name, value in values.items()}


def _list_variants(secret: str) -> Sequence[str]:
    """Return the forms in which a response can echo a secret: whole, without `Bearer`, percent-encoded."""
    return secret, *secret.split()[1:], secret.removeprefix("whsec_"), quote(secret, safe="")


def _add_query(url: str, query: Mapping[str, str]) -> str:
    pairs = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query.items())
    return f"{url}?{pairs}" if pairs else url
