"""A message as a request."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pillarbox.brokers.http.encoding import RequestTemplate, encode
from pillarbox.brokers.http.signing import signing_key, verify
from pillarbox.cloudevents import HTTP, read
from pillarbox.errors import MessageRejected
from pillarbox.testing.samples import sample

NOW = datetime(2026, 1, 1, 12, 0, 0, 999_999, tzinfo=UTC)
KEYS = [signing_key("a secret that is long enough"), signing_key("another one that is long enough")]
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_the_headers_of_a_binary_request() -> None:
    message = sample(key="c 1", headers={"tenant": "shop", "traceparent": TRACE})
    request = encode(message, RequestTemplate(), at=NOW)
    message_id = str(message.message_id)
    assert request.body is message.payload
    assert request.headers == {
        "idempotency-key": message_id,
        "traceparent": TRACE,
        "tenant": "shop",
        "ce-specversion": "1.0",
        "ce-id": message_id,
        "ce-source": "/shop",
        "ce-type": "orders.placed",
        "ce-time": "2025-12-31T23:59:59.123456Z",
        "ce-partitionkey": "c%201",
        "ce-correlationid": message_id,
        "ce-topic": "orders",
        "ce-kind": "event",
        "ce-traceparent": TRACE,
        "content-type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": "1767268800",
    }


def test_a_structured_request_is_one_document() -> None:
    message = sample(headers={"tenant": "shop"})
    request = encode(message, RequestTemplate(mode="structured"), at=NOW)
    assert request.headers["content-type"] == "application/cloudevents+json"
    assert "tenant" not in request.headers
    assert read(request.headers, request.body, binding=HTTP).headers == {"tenant": "shop"}


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_what_is_sent_is_what_is_signed(mode: str) -> None:
    template = RequestTemplate(mode="binary" if mode == "binary" else "structured", keys=KEYS)
    message = sample(payload=b'{"a": "\xc3\xa9"}')
    request = encode(message, template, at=NOW)
    assert len(request.headers["webhook-signature"].split(" ")) == 2
    for key in KEYS:
        assert verify([key], headers=request.headers, body=request.body, now=NOW) == str(message.message_id)


def test_an_attempt_has_its_own_time_and_the_same_id() -> None:
    message = sample()
    first = encode(message, RequestTemplate(keys=KEYS), at=NOW)
    second = encode(message, RequestTemplate(keys=KEYS), at=NOW + timedelta(seconds=1))
    for name in ("webhook-id", "idempotency-key", "ce-id"):
        assert first.headers[name] == second.headers[name] == str(message.message_id)
    assert first.headers["webhook-timestamp"] != second.headers["webhook-timestamp"]
    assert first.headers["webhook-signature"] != second.headers["webhook-signature"]


def test_the_endpoint_s_headers_count_before_the_message_s() -> None:
    message = sample(headers={"X-Tenant": "message", "Idempotency-Key": "its own"})
    headers = encode(message, RequestTemplate(headers={"x-tenant": "endpoint"}), at=NOW).headers
    assert headers["x-tenant"] == "endpoint"
    assert "X-Tenant" not in headers
    assert headers["Idempotency-Key"] == "its own"


@pytest.mark.parametrize(
    "headers",
    [
        {"a": "b\r\nhost: evil"},
        {"a": "b\x00"},
        {"a\r\nb": "c"},
        {"a b": "c"},
        {"a:": "c"},
        {"": "c"},
        {"é": "c"},
        {"a": "\ud800"},
        {"Content-Length": "0"},
        {"transfer-encoding": "chunked"},
        {"HOST": "evil"},
        {"ce-id": "other"},
        {"Webhook-Signature": "v1,forged"},
    ],
)
def test_a_header_that_would_change_the_request_rejects_the_message(headers: dict[str, str]) -> None:
    with pytest.raises(MessageRejected):
        encode(sample(headers=headers), RequestTemplate(), at=NOW)


def test_a_content_type_that_would_change_the_request_rejects_the_message() -> None:
    with pytest.raises(MessageRejected):
        encode(sample(content_type="text/plain\r\nhost: evil"), RequestTemplate(), at=NOW)
