"""HTTP as a destination: webhooks, signed, as CloudEvents. Needs the extra `http`."""

from __future__ import annotations

from pillarbox.transports.http.settings import HttpSettings, http_settings
from pillarbox.transports.http.transport import HttpTransport, http_transport

__all__ = ["HttpSettings", "HttpTransport", "http_settings", "http_transport"]
