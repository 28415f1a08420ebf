"""Standard Webhooks: signing and verifying `id.timestamp.body`. Pure.

The scheme is HMAC-SHA256, `v1`. The header carries one signature per active secret, so that secrets can be changed
without a gap: the receiver accepts any signature by a secret that it knows.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from pillarbox.errors import ConfigError, DecodeError

__all__ = ["ID", "SIGNATURE", "TIMESTAMP", "TOLERANCE", "check_time", "sign", "signing_key", "verify"]

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
TOLERANCE: Final = timedelta(minutes=5)
"""Limit for the difference between a timestamp and the receiver's clock, either way."""

_PREFIX: Final = "whsec_"
_MIN_KEY_BYTES: Final = 24
_VALID_ID: Final = re.compile(r"[!-\-/-~]{1,512}")
"""Without dots: `a.1.x` with a body, and `a` at the time 1 with `x.` before that body, would have one signature."""
_MAX_SIGNATURES: Final = 32
"""Signatures of a request that are compared. A sender that changes its secret has two."""


def signing_key(secret: str) -> bytes:
    """Return the key of a secret: the base64 after `whsec_` decoded, or without that prefix the text as UTF-8.

    Raises `ConfigError` if it is not base64, or shorter than the 24 bytes that the standard asks for.
    """
    key = _decode_key(secret.removeprefix(_PREFIX)) if secret.startswith(_PREFIX) else secret.encode()
    if secret.startswith(("whsk_", "whpk_")):
        raise ConfigError("A webhook secret is an ed25519 key, which is not supported; use a whsec_ secret.")
    if len(key) < _MIN_KEY_BYTES:
        raise ConfigError(
            f"A webhook secret has {len(key)} bytes; the standard asks for at least {_MIN_KEY_BYTES} random ones."
        )
    return key


def _decode_key(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        raise ConfigError("A webhook secret that begins with whsec_ must go on in base64, and does not.") from None


def sign(keys: Sequence[bytes], *, message_id: str, at: datetime, body: bytes) -> str:
    """Return the value of the `webhook-signature` header: a signature by each key, in order.

    Raises `ValueError` for an id with a dot: the parts of what is signed are joined by dots.
    """
    if not _is_valid_id(message_id):
        raise ValueError("a webhook id is printable ASCII without dots and spaces")
    content = _build_content(message_id, str(int(at.timestamp())), body)
    return " ".join(f"v1,{base64.b64encode(_compute_digest(key, content)).decode()}" for key in keys)


def verify(
    keys: Sequence[bytes],
    *,
    headers: Mapping[str, str],
    body: bytes,
    now: datetime,
    tolerance: timedelta = TOLERANCE,
) -> str:
    """Return the message id of a request; raise `DecodeError` unless one of the keys signed it at about this time.

    Deduplicate by the id: within the tolerance, anyone who saw the request can send it again. The signature covers
    the id, the time and the body, and no other header.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, timestamp, signatures = lower[ID], lower[TIMESTAMP], lower[SIGNATURE]
    except KeyError as error:
        raise DecodeError(f"A webhook has no {error.args[0]} header, so it cannot be verified.") from None
    if not _is_valid_id(message_id):
        raise DecodeError(
            "The webhook-id of a webhook is empty, too long, or holds a dot or a space, so that its signature could "
            "stand for another message."
        )
    check_time(timestamp, now=now, tolerance=tolerance)
    content = _build_content(message_id, timestamp, body)
    expected = [_compute_digest(key, content) for key in keys]
    # Every pair is compared, so that the time taken does not reveal which one matched.
    matches = [hmac.compare_digest(one, other) for one in _parse_signatures(signatures) for other in expected]
    if not any(matches):
        raise DecodeError("The signature of a webhook is not by any of the secrets known here.")
    return message_id


def check_time(timestamp: str, *, now: datetime, tolerance: timedelta = TOLERANCE) -> None:
    """Raise `DecodeError` unless a `webhook-timestamp` is about this time."""
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        raise DecodeError("The webhook-timestamp of a webhook is not a count of seconds.")
    if abs(int(timestamp) - now.timestamp()) > tolerance.total_seconds():
        raise DecodeError("The webhook-timestamp of a webhook is too far from the time here; it may be a replay.")


def _parse_signatures(header: str) -> Iterator[bytes]:
    for part in header.split(" ")[:_MAX_SIGNATURES]:
        version, _, text = part.partition(",")
        if version == "v1":
            try:
                yield base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                continue


def _is_valid_id(message_id: str) -> bool:
    return _VALID_ID.fullmatch(message_id) is not None


def _build_content(message_id: str, timestamp: str, body: bytes) -> bytes:
    return f"{message_id}.{timestamp}.".encode() + body


def _compute_digest(key: bytes, content: bytes) -> bytes:
    return hmac.new(key, content, hashlib.sha256).digest()
