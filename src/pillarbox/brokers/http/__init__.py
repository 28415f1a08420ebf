"""HTTP transport and receiver: webhooks, signed, as CloudEvents. The transport needs the extra `http`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pillarbox.brokers.http.receiver import HttpReceiver
from pillarbox.brokers.http.settings import HttpSettings, http_settings
from pillarbox.brokers.http.signing import signing_key, verify
from pillarbox.lazy import lazy_names

if TYPE_CHECKING:
    from pillarbox.brokers.http.transport import HttpTransport, http_transport
else:
    # A service that only receives needs no HTTP client.
    __getattr__ = lazy_names(
        __name__,
        {"HttpTransport": "pillarbox.brokers.http.transport", "http_transport": "pillarbox.brokers.http.transport"},
    )

__all__ = [
    "HttpReceiver",
    "HttpSettings",
    "HttpTransport",
    "http_settings",
    "http_transport",
    "signing_key",
    "verify",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
