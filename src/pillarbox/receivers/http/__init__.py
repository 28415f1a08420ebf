"""Messages that come as HTTP requests: CloudEvents and Standard Webhooks, by an ASGI app to mount in a web service.

The sender is answered when the message is handled: 204 then, 503 when it could not be, so that it tries again.
"""

from __future__ import annotations

from pillarbox.receivers.http.receiver import HttpReceiver

__all__ = ["HttpReceiver"]
