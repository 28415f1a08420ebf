"""Why there is no way to the broker, in a sentence that says what to do. Pure."""

from __future__ import annotations

import os
import ssl
from typing import Final

from pillarbox.errors import TransportUnavailable
from pillarbox.transports.rabbitmq.endings import Closed
from pillarbox.transports.redaction import one_line

__all__ = ["NOT_FOUND", "PRECONDITION_FAILED", "REFUSED", "TOO_LARGE", "disliked", "said", "unreachable"]

TOO_LARGE: Final = 311
REFUSED: Final = 403
NOT_FOUND: Final = 404
PRECONDITION_FAILED: Final = 406
_NOT_ALLOWED: Final = 530


def unreachable(error: Exception, *, where: str) -> TransportUnavailable:
    """No connection, no login, or not that virtual host."""
    reason, code = said(error), error.code if isinstance(error, Closed) else None
    if code == REFUSED:
        text = f"{where} refuses the login ({reason}): check user and password."
    elif code == _NOT_ALLOWED:
        text = f"{where} refuses the virtual host ({reason}): check the URL's path and the user's permissions."
    elif isinstance(error, ssl.SSLError):
        text = (
            f"{where} cannot be trusted or spoken to by TLS ({reason}): check its certificate and the options ca and "
            "client_certificate."
        )
    else:
        text = f"{where} cannot be reached ({reason}): check that it runs, and the URL's host and port."
    return TransportUnavailable(text)


def disliked(closed: Closed, *, where: str, exchange: str) -> TransportUnavailable:
    """A question about the exchange, or its declaration, closed the channel."""
    named = f"exchange {one_line(exchange)!r}"
    if closed.code == NOT_FOUND:
        text = f"{where} has no {named}: declare it, or set declare=true"
    elif closed.code == PRECONDITION_FAILED:
        text = f"{where} has another {named}: correct exchange_type, or leave out declare"
    elif closed.code == REFUSED:
        text = f"{where} does not let this user declare the {named}: grant it, or leave out declare"
    else:
        text = f"{where} did not like a question about the {named}"
    return TransportUnavailable(f"{text} ({said(closed)}).")


def said(error: BaseException) -> str:
    """The error in a few words; the system's own for what the system reports."""
    if isinstance(error, ssl.SSLError):
        return one_line(str(getattr(error, "verify_message", "") or getattr(error, "reason", "") or "no TLS"))
    if isinstance(error, TimeoutError) and not error.errno:
        return "no answer in time"
    if isinstance(error, OSError):
        # Errors of name lookup have numbers of their own, below 0; of several addresses, asyncio tells in one text.
        return os.strerror(error.errno) if error.errno and error.errno > 0 else one_line(error.strerror or str(error))
    return one_line(str(error))
