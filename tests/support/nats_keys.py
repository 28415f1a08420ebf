"""Operators, accounts and users of NATS, as `nsc` makes them: keys, JWTs, credentials files."""

from __future__ import annotations

import base64
import binascii
import hashlib
import time
from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["Key", "credentials"]

_PREFIXES: Final = {"operator": 14 << 3, "account": 0, "user": 20 << 3}
_SEED: Final = 18 << 3


class Key:
    """A new key of an operator, an account or a user."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._private = Ed25519PrivateKey.generate()

    @property
    def public(self) -> str:
        return _encoded(bytes([_PREFIXES[self.kind]]) + self._private.public_key().public_bytes_raw())

    @property
    def seed(self) -> str:
        prefix = _PREFIXES[self.kind]
        return _encoded(bytes([_SEED | prefix >> 5, (prefix & 31) << 3]) + self._private.private_bytes_raw())

    def jwt(self, about: Key, **nats: object) -> str:
        """What this one says of another, signed."""
        claims = {
            "iat": int(time.time()), "iss": self.public, "sub": about.public, "name": about.kind,
            "nats": {"type": about.kind, "version": 2, **nats},
        }  # fmt: skip
        claims["jti"] = base64.b32encode(hashlib.sha256(msgspec.json.encode(claims)).digest()).decode().rstrip("=")
        signed = f"{_part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_part(claims)}"
        return f"{signed}.{_url(self._private.sign(signed.encode()))}"


def credentials(user: Key, jwt: str) -> str:
    """The text of a credentials file."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\nKeep it.\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )


def _encoded(raw: bytes) -> str:
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


def _part(members: object) -> str:
    return _url(msgspec.json.encode(members))


def _url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
