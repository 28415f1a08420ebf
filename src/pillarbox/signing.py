"""Standard Webhooks: signatures over `id.timestamp.body`, made and verified. Pure.

The scheme is HMAC-SHA256, `v1`. The header carries one signature per active secret, so that secrets can be changed
without a gap: the receiver accepts any that it knows.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from pillarbox.errors import ConfigError, DecodeError

__all__ = ["ID", "SIGNATURE", "TIMESTAMP", "TOLERANCE", "signature", "signing_key", "verify"]

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
TOLERANCE: Final = timedelta(minutes=5)
"""How far a timestamp may be from the receiver's clock, either way."""

_PREFIX: Final = "whsec_"
_SHORTEST: Final = 24
_MANY: Final = 32
"""Signatures that are looked at: a sender that changes secrets has two."""


def signing_key(secret: str) -> bytes:
    """The key of a secret: what the base64 after `whsec_` stands for, or else the text itself, as UTF-8.

    `ConfigError` when it is not base64, or shorter than the 24 bytes that the standard asks for.
    """
    key = _decoded(secret.removeprefix(_PREFIX)) if secret.startswith(_PREFIX) else secret.encode()
    if secret.startswith(("whsk_", "whpk_")):
        raise ConfigError("A webhook secret is an ed25519 key, which is not supported; use a whsec_ secret.")
    if len(key) < _SHORTEST:
        raise ConfigError(
            f"A webhook secret has {len(key)} bytes; the standard asks for at least {_SHORTEST} random ones."
        )
    return key


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        raise ConfigError("A webhook secret that begins with whsec_ must go on in base64, and does not.") from None


def signature(keys: Sequence[bytes], *, message_id: str, at: datetime, body: bytes) -> str:
    """The value of `webhook-signature`: a signature by each key, in order."""
    signed = _signed(message_id, str(int(at.timestamp())), body)
    return " ".join(f"v1,{base64.b64encode(_digest(key, signed)).decode()}" for key in keys)


def verify(
    keys: Sequence[bytes],
    *,
    headers: Mapping[str, str],
    body: bytes,
    now: datetime,
    tolerance: timedelta = TOLERANCE,
) -> str:
    """The message id of a request that was signed with one of the keys, at about this time; else `DecodeError`.

    The id is what to deduplicate by: within the tolerance, the same request can be sent again by anyone who saw it.
    """
    given = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, timestamp, signatures = given[ID], given[TIMESTAMP], given[SIGNATURE]
    except KeyError as error:
        raise DecodeError(f"A webhook has no {error.args[0]} header, so it cannot be verified.") from None
    _check_time(timestamp, now=now, tolerance=tolerance)
    signed = _signed(message_id, timestamp, body)
    expected = [_digest(key, signed) for key in keys]
    # Every pair is compared, so that the time taken tells nothing.
    matching = [hmac.compare_digest(one, other) for one in _given(signatures) for other in expected]
    if not any(matching):
        raise DecodeError("The signature of a webhook is not by any of the secrets known here.")
    return message_id


def _check_time(timestamp: str, *, now: datetime, tolerance: timedelta) -> None:
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        raise DecodeError("The webhook-timestamp of a webhook is not a count of seconds.")
    if abs(int(timestamp) - now.timestamp()) > tolerance.total_seconds():
        raise DecodeError("The webhook-timestamp of a webhook is too far from the time here; it may be a replay.")


def _given(header: str) -> Iterator[bytes]:
    for part in header.split(" ")[:_MANY]:
        version, _, text = part.partition(",")
        if version == "v1":
            try:
                yield base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                continue


def _signed(message_id: str, timestamp: str, body: bytes) -> bytes:
    return f"{message_id}.{timestamp}.".encode() + body


def _digest(key: bytes, signed: bytes) -> bytes:
    return hmac.new(key, signed, hashlib.sha256).digest()
