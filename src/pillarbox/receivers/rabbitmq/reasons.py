"""Why there is no way to the broker or its queue, in a sentence that says what to do."""

from __future__ import annotations

import os
import ssl

from pillarbox.errors import MissingExtra, TransportUnavailable
from pillarbox.transports.redaction import one_line

try:
    import aiormq
    from aiormq.exceptions import (
        AuthenticationError,
        ChannelAccessRefused,
        ChannelNotFoundEntity,
        ChannelPreconditionFailed,
        ConnectionNotAllowed,
        InvalidFrameError,
        ProbableAuthenticationError,
    )
except ModuleNotFoundError as error:
    raise MissingExtra("aio-pika", extra="rabbitmq", needed_for="The rabbitmq receiver") from error

__all__ = ["TROUBLES", "ChannelNotFoundEntity", "disliked", "said", "unreachable"]

TROUBLES = (aiormq.AMQPError, OSError, TimeoutError, RuntimeError, ValueError)
"""What the client raises: its own, the system's, and `RuntimeError` for what was closed meanwhile."""


def unreachable(error: BaseException, *, where: str) -> TransportUnavailable:
    """No connection, no login, or not that virtual host."""
    reason, cause = said(error), error.__cause__
    if isinstance(error, (ProbableAuthenticationError, AuthenticationError)):
        text = f"{where} refuses the login ({reason}): check user and password."
    elif isinstance(error, ConnectionNotAllowed) or _is_unopened(error):
        text = f"{where} refuses the virtual host ({reason}): check the URL's path and the user's permissions."
    elif isinstance(cause, ssl.SSLError) or isinstance(error, ssl.SSLError):
        text = (
            f"{where} cannot be trusted or spoken to by TLS ({reason}): check its certificate and the options ca and "
            "client_certificate."
        )
    else:
        text = f"{where} cannot be reached ({reason}): check that it runs, and the URL's host and port."
    return TransportUnavailable(text)


def _is_unopened(error: BaseException) -> bool:
    """The client takes the broker's refusal of a virtual host for a frame in the wrong place."""
    return isinstance(error, InvalidFrameError) and "Connection.OpenOk" in str(error)


def disliked(error: BaseException, *, where: str, what: str) -> TransportUnavailable:
    """A question about a queue or an exchange, or its declaration, was answered with an error."""
    if isinstance(error, ChannelNotFoundEntity):
        text = f"{where} has no {what}: declare it, or set declare=true"
    elif isinstance(error, ChannelAccessRefused):
        text = f"{where} does not let this user use the {what}: grant it"
    elif isinstance(error, ChannelPreconditionFailed):
        text = f"{where} does not take the {what} as it should be: correct the options, or leave out declare"
    else:
        text = f"{where} did not answer a question about the {what}"
    return TransportUnavailable(f"{text} ({said(error)}).")


def said(error: BaseException) -> str:
    """The error in a few words; the system's own for what the system reports."""
    if _is_unopened(error):
        return "it was not opened"
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    if isinstance(cause, ssl.SSLError):
        return one_line(str(getattr(cause, "verify_message", "") or cause.reason or "no TLS"))
    if isinstance(cause, TimeoutError) and not cause.errno:
        return "no answer in time"
    if isinstance(cause, OSError) and cause.errno and cause.errno > 0:
        return os.strerror(cause.errno)
    texts = [str(part) for part in cause.args if isinstance(part, str) and part]
    return one_line(" ".join(texts) or type(cause).__name__)
