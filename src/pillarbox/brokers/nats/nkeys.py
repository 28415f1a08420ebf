"""Login by key: NKEY seeds, and the credentials files that `nsc` writes. Needs the extra `nats-keys`."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from pillarbox.errors import ConfigError, MissingExtra

__all__ = ["KeyLogin", "login_by_credentials", "login_by_seed"]

_SEED: Final = 18 << 3
_USER: Final = 20 << 3
_MAX_FILE: Final = 64 * 1024
"""Characters of a file that are read. nsc writes about 1,000."""
_BLOCK: Final = r"-BEGIN {name}-{{1,20}}\s{{1,20}}(?P<text>[A-Za-z0-9_.=-]++)\s{{1,20}}-{{1,20}}END {name}-"
_JWT: Final = re.compile(_BLOCK.format(name="NATS USER JWT"))
_NKEY: Final = re.compile(_BLOCK.format(name="USER NKEY SEED"))


class KeyLogin(msgspec.Struct, frozen=True):
    """A key that signs the server's challenge. Its text hides everything."""

    sign: Callable[[str], bytes]
    """Signs the server's nonce; returns base64."""
    nkey: str | None = None
    """The public key, where there is no JWT to hold it."""
    jwt: str | None = None

    def __repr__(self) -> str:
        return "KeyLogin(***)"


def login_by_seed(seed: str) -> KeyLogin:
    """Build the login of a user whose public key the server knows."""
    sign, public = _build_signer(seed, option="nkey")
    return KeyLogin(sign, nkey=public)


def login_by_credentials(path: str) -> KeyLogin:
    """Build the login of a user whose JWT an account has signed."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(_MAX_FILE)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"The file of the option credentials cannot be read: {reason}.") from None
    jwt, seed = _JWT.search(text), _NKEY.search(text)
    if jwt is None or seed is None:
        raise ConfigError("The file of the option credentials holds no user JWT with a seed; make it with nsc.")
    sign, _ = _build_signer(seed["text"], option="credentials")
    return KeyLogin(sign, jwt=jwt["text"])


def _build_signer(seed: str, *, option: str) -> tuple[Callable[[str], bytes], str]:
    raw = _decode_seed(seed, option=option)
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ModuleNotFoundError as error:
        needed_for = f"The option {option} of the nats transport"
        raise MissingExtra("cryptography", extra="nats-keys", needed_for=needed_for) from error
    key = Ed25519PrivateKey.from_private_bytes(raw)

    def sign(nonce: str) -> bytes:
        return base64.b64encode(key.sign(nonce.encode()))

    return sign, _encode_public_key(_USER, key.public_key().public_bytes_raw())


def _decode_seed(seed: str, *, option: str) -> bytes:
    """Return the 32 bytes in a user's seed: two of prefix precede them, two of checksum follow."""
    try:
        raw = base64.b32decode(seed.strip() + "=" * (-len(seed.strip()) % 8))
    except binascii.Error:
        raw = b""
    if len(raw) != 36 or int.from_bytes(raw[-2:], "little") != binascii.crc_hqx(raw[:-2], 0):
        raise ConfigError(f"The option {option} of the nats transport holds no NKEY seed; it begins with SU.")
    if raw[0] & 0xF8 != _SEED or (raw[0] & 7) << 5 | raw[1] >> 3 != _USER:
        raise ConfigError(f"The option {option} of the nats transport is not the seed of a user; it begins with SU.")
    return raw[2:-2]


def _encode_public_key(prefix: int, key: bytes) -> str:
    raw = bytes([prefix]) + key
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).rstrip(b"=").decode()
