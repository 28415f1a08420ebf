"""Standard Webhooks signatures: ours and the official package's agree, and nothing else passes."""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta

import pytest
import standardwebhooks
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.brokers.http.signing import sign, signing_key, verify
from pillarbox.errors import ConfigError, DecodeError

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
KEY = signing_key(SECRET)
OTHER = signing_key("another secret of some length!!")
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
BODY = b'{"test": 2432232314}'


def headers(*keys: bytes, at: datetime = NOW, body: bytes = BODY, message_id: str = "msg_1") -> dict[str, str]:
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": sign(keys, message_id=message_id, at=at, body=body),
    }


# --- against the official package ----------------------------------------------------------------


def test_the_published_example() -> None:
    at = datetime.fromtimestamp(1614265330, UTC)
    made = sign([KEY], message_id="msg_p5jXN8AQM9LWM0D4loKWxJek", at=at, body=BODY)
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@given(body=st.text(), secret=st.binary(min_size=24, max_size=64), at=st.integers(0, 4_000_000_000))
def test_signatures_are_those_of_the_official_package(body: str, secret: bytes, at: int) -> None:
    text = "whsec_" + base64.b64encode(secret).decode()
    when = datetime.fromtimestamp(at, UTC)
    official = standardwebhooks.Webhook(text).sign("msg_1", when, body)
    assert sign([signing_key(text)], message_id="msg_1", at=when, body=body.encode()) == official


def test_the_official_package_verifies_ours() -> None:
    now = datetime.now(UTC)
    for keys in ([KEY], [KEY, OTHER], [OTHER, KEY]):
        standardwebhooks.Webhook(SECRET).verify(BODY, headers(*keys, at=now))


def test_we_verify_the_official_package_s() -> None:
    given = headers(at=NOW) | {"webhook-signature": standardwebhooks.Webhook(SECRET).sign("msg_1", NOW, BODY.decode())}
    assert verify([KEY], headers=given, body=BODY, now=NOW) == "msg_1"


# --- verifying -----------------------------------------------------------------------------------


@given(st.binary())
def test_any_bytes_can_be_signed(body: bytes) -> None:
    assert verify([KEY], headers=headers(KEY, body=body), body=body, now=NOW) == "msg_1"


def test_either_secret_passes_while_they_change() -> None:
    both = headers(KEY, OTHER)
    assert verify([KEY], headers=both, body=BODY, now=NOW) == "msg_1"
    assert verify([OTHER], headers=both, body=BODY, now=NOW) == "msg_1"
    assert verify([OTHER, KEY], headers=headers(KEY), body=BODY, now=NOW) == "msg_1"


def test_header_names_have_any_letter_case() -> None:
    shouted = {name.upper(): value for name, value in headers(KEY).items()}
    assert verify([KEY], headers=shouted, body=BODY, now=NOW) == "msg_1"


@pytest.mark.parametrize(
    "change",
    [
        {"webhook-id": "msg_2"},
        {"webhook-timestamp": str(int(NOW.timestamp()) + 1)},
        {"webhook-signature": ""},
        {"webhook-signature": "v1,"},
        {"webhook-signature": "v1"},
        {"webhook-signature": "v1,é"},
        {"webhook-signature": "v1,not base64!"},
        {"webhook-signature": headers(OTHER)["webhook-signature"]},
        {"webhook-signature": headers(KEY)["webhook-signature"].replace("v1,", "v2,")},
        {"webhook-signature": headers(KEY)["webhook-signature"].replace("v1,", "v1a,")},
    ],
)
def test_a_changed_header_does_not_pass(change: dict[str, str]) -> None:
    with pytest.raises(DecodeError, match="signature"):
        verify([KEY], headers=headers(KEY) | change, body=BODY, now=NOW)


@pytest.mark.parametrize("message_id", ["", "a.1767268800.x", ".", "a b", "a\n", "é", "x" * 513])
def test_an_id_that_could_stand_for_another_message_is_refused(message_id: str) -> None:
    """`a` with the body `x.body` and `a.TIME.x` with `body` would be one content: the parts are joined by dots."""
    with pytest.raises(ValueError, match="webhook id"):
        sign([KEY], message_id=message_id, at=NOW, body=BODY)
    content = f"{message_id}.{int(NOW.timestamp())}.".encode() + BODY
    signature = base64.b64encode(hmac.new(KEY, content, hashlib.sha256).digest()).decode()
    given = headers(KEY) | {"webhook-id": message_id, "webhook-signature": f"v1,{signature}"}
    with pytest.raises(DecodeError, match="webhook-id"):
        verify([KEY], headers=given, body=BODY, now=NOW)


def test_a_changed_body_does_not_pass() -> None:
    with pytest.raises(DecodeError, match="signature"):
        verify([KEY], headers=headers(KEY), body=BODY + b" ", now=NOW)


def test_no_known_secret_lets_nothing_pass() -> None:
    with pytest.raises(DecodeError, match="signature"):
        verify([], headers=headers(KEY), body=BODY, now=NOW)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_missing_header_is_named(name: str) -> None:
    given = headers(KEY)
    del given[name]
    with pytest.raises(DecodeError, match=name):
        verify([KEY], headers=given, body=BODY, now=NOW)


@pytest.mark.parametrize("off", [timedelta(minutes=5), -timedelta(minutes=5), timedelta(0)])
def test_a_timestamp_within_five_minutes_passes(off: timedelta) -> None:
    assert verify([KEY], headers=headers(KEY), body=BODY, now=NOW + off) == "msg_1"


@pytest.mark.parametrize("off", [timedelta(minutes=5, seconds=1), -timedelta(minutes=5, seconds=1)])
def test_a_timestamp_beyond_five_minutes_does_not(off: timedelta) -> None:
    with pytest.raises(DecodeError, match="too far"):
        verify([KEY], headers=headers(KEY), body=BODY, now=NOW + off)


@pytest.mark.parametrize("text", ["", "-1", "1e9", "nan", "inf", "²", "9" * 400, "1614265330.5", " 1614265330"])
def test_a_timestamp_that_is_no_count_does_not_pass(text: str) -> None:
    with pytest.raises(DecodeError, match="not a count of seconds"):
        verify([KEY], headers=headers(KEY) | {"webhook-timestamp": text}, body=BODY, now=NOW)


# --- secrets -------------------------------------------------------------------------------------


def test_a_secret_is_base64_after_its_prefix_and_itself_without() -> None:
    raw = bytes(range(24))
    assert signing_key("whsec_" + base64.b64encode(raw).decode()) == raw
    assert signing_key("whsec_" + base64.b64encode(raw + b"1").decode().rstrip("=")) == raw + b"1"
    assert signing_key("a raw secret of 30 characters…") == "a raw secret of 30 characters…".encode()


@pytest.mark.parametrize("secret", ["", "short", "twenty-three bytes long", "whsec_", "whsec_c2hvcnQ=",
                                    "whsec_not base64 at all, is it!!!!",
                                    "whsk_" + "a" * 44, "whpk_" + "a" * 44])  # fmt: skip
def test_a_secret_that_is_not_one_is_refused_without_being_repeated(secret: str) -> None:
    with pytest.raises(ConfigError) as refused:
        signing_key(secret)
    assert len(secret) < 7 or secret.rpartition("_")[2] not in str(refused.value)
