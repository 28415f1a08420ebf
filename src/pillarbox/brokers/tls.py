"""TLS options of all transports, and the context they make."""

from __future__ import annotations

import logging
import ssl
from typing import Final

import msgspec

from pillarbox.errors import ConfigError

__all__ = ["Tls", "build_tls_context"]

_log: Final = logging.getLogger(__name__)


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an encrypted connection, the same for every transport."""

    verify: bool = True
    """Check the server's certificate and name."""
    ca: str | None = None
    """A file of certificates to trust in place of the system's."""
    client_certificate: str | None = None
    client_key: str | None = None
    """Files that prove who we are. The key may be in the certificate's file."""

    def check(self, *, insecure: bool, far_side: str) -> None:
        """Raise `ConfigError` for options that contradict each other, or that are unsafe without `insecure`."""
        if not self.verify and not insecure:
            raise ConfigError(f"verify=false lets anyone pose as the {far_side}; if that is meant, add insecure=true.")
        if self.client_key is not None and self.client_certificate is None:
            raise ConfigError("The option client_key needs client_certificate as well.")


def build_tls_context(tls: Tls, *, transport: str, where: str) -> ssl.SSLContext:
    """Build the context of a client. It checks certificates and names; that `verify` is off is logged."""
    try:
        context = ssl.create_default_context(cafile=tls.ca)
    except (OSError, ssl.SSLError) as error:
        raise _unreadable_file_error("ca", error, transport) from error
    if tls.client_certificate is not None:
        try:
            context.load_cert_chain(tls.client_certificate, tls.client_key, password=_refuse_password)
        except (OSError, ssl.SSLError) as error:
            raise _unreadable_file_error("client_certificate or client_key", error, transport) from error
    if not tls.verify:
        _log.warning("The certificate of %s is not checked: anyone can pose as it.", where)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _refuse_password() -> str:
    # Without this callback OpenSSL would ask at the terminal, and wait.
    raise ssl.SSLError("the key is encrypted, and a password for it cannot be given")


def _unreadable_file_error(option: str, error: OSError, transport: str) -> ConfigError:
    reason = error.strerror or (error.args[0] if error.args else type(error).__name__)
    return ConfigError(f"The file of the option {option} of the {transport} transport cannot be used: {reason}.")
