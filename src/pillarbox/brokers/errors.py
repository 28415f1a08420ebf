"""Errors that every broker has: not open, not reachable, not trusted, login refused, connection broken.

Each function returns the error with a sentence that names the broker, the reason and what to check. `where` is the
broker for people, such as "NATS at localhost:4222"; `reason` comes from `describe_error` or from the driver.
"""

from __future__ import annotations

import os
import ssl

from pillarbox.errors import TransportUnavailable
from pillarbox.redaction import redact_line

__all__ = [
    "connection_broken_error",
    "describe_error",
    "login_refused_error",
    "map_connect_error",
    "not_open_error",
    "tls_error",
    "unreachable_error",
]


def not_open_error(owner: str) -> TransportUnavailable:
    """The owner, such as "nats transport", was never opened or is closed."""
    return TransportUnavailable(f"The {owner} is not open; call open() first.")


def unreachable_error(
    where: str, reason: str, *, check: str = "that it runs, and the URL's host and port"
) -> TransportUnavailable:
    """No connection could be made."""
    return TransportUnavailable(f"{where} cannot be reached ({reason}): check {check}.")


def login_refused_error(where: str, reason: str, *, check: str = "user and password") -> TransportUnavailable:
    """The broker is there, and does not accept who we are."""
    return TransportUnavailable(f"{where} refuses the login ({reason}): check {check}.")


def tls_error(where: str, reason: str) -> TransportUnavailable:
    """A certificate is not trusted, or the other side does not speak TLS."""
    return TransportUnavailable(
        f"{where} cannot be trusted or spoken to by TLS ({reason}): check its certificate and the options ca and "
        "client_certificate."
    )


def connection_broken_error(where: str, reason: str, *, mid_send: bool = False) -> TransportUnavailable:
    """A connection that was up has ended."""
    return TransportUnavailable(f"The connection to {where} broke ({reason}).", mid_send=mid_send)


def map_connect_error(
    error: BaseException,
    where: str,
    *,
    seconds: float | None = None,
    check: str = "that it runs, and the URL's host and port",
) -> TransportUnavailable:
    """Map what the system raised while connecting. Errors of the driver itself are mapped before, by its broker."""
    reason = describe_error(error, seconds=seconds)
    if isinstance(error, ssl.SSLError):
        return tls_error(where, reason)
    return unreachable_error(where, reason, check=check)


def describe_error(error: BaseException, *, seconds: float | None = None) -> str:
    """Describe an error in a few words, on one line and without secrets. `seconds` is the timeout that ran out."""
    if isinstance(error, ssl.SSLError):
        return redact_line(str(getattr(error, "verify_message", "") or getattr(error, "reason", "") or "no TLS"))
    if isinstance(error, TimeoutError) and not error.errno:
        return "no answer in time" if seconds is None else f"no answer within {seconds:g} s"
    if isinstance(error, OSError):
        # Errors of name lookup have numbers of their own, below 0; asyncio joins the errors of several addresses
        # into one text without a number.
        if error.errno and error.errno > 0:
            return os.strerror(error.errno)
        return redact_line(error.strerror or str(error)) or type(error).__name__
    return redact_line(str(error)) or type(error).__name__
