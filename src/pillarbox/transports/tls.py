"""How a far side and we prove to each other who we are."""

from __future__ import annotations

import logging
import ssl
from typing import Final

import msgspec

from pillarbox.errors import ConfigError

__all__ = ["Tls", "tls_context"]

_log: Final = logging.getLogger(__name__)


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """The options of an encrypted connection, the same for every transport."""

    verify: bool = True
    """Check the far side's certificate and name."""
    ca: str | None = None
    """A file of certificates to trust instead of the system's."""
    client_certificate: str | None = None
    client_key: str | None = None
    """Files to show who we are. The key may be in the certificate's file."""

    def check(self, *, insecure: bool, far_side: str) -> None:
        """`ConfigError` for options that contradict each other, or that are unsafe and not meant."""
        if not self.verify and not insecure:
            raise ConfigError(f"verify=false lets anyone pose as the {far_side}; if that is meant, add insecure=true.")
        if self.client_key is not None and self.client_certificate is None:
            raise ConfigError("The option client_key needs client_certificate as well.")


def tls_context(tls: Tls, *, transport: str, where: str) -> ssl.SSLContext:
    """Certificates and names are checked, unless the options say otherwise, which is logged."""
    try:
        context = ssl.create_default_context(cafile=tls.ca)
    except (OSError, ssl.SSLError) as error:
        raise _unreadable("ca", error, transport) from error
    if tls.client_certificate is not None:
        try:
            context.load_cert_chain(tls.client_certificate, tls.client_key, password=_no_password)
        except (OSError, ssl.SSLError) as error:
            raise _unreadable("client_certificate or client_key", error, transport) from error
    if not tls.verify:
        _log.warning("The certificate of %s is not checked: anyone can pose as it.", where)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _no_password() -> str:
    """Without this, OpenSSL would ask at the terminal and wait."""
    raise ssl.SSLError("the key is encrypted, and a password for it cannot be given")


def _unreadable(option: str, error: OSError, transport: str) -> ConfigError:
    reason = error.strerror or (error.args[0] if error.args else type(error).__name__)
    return ConfigError(f"The file of the option {option} of the {transport} transport cannot be used: {reason}.")
