"""The dashboard: stores in the browser, for operators. Needs `pillarbox[dashboard]`.

`Dashboard(stores, authorize=…)` is an ASGI app. `pillarbox dashboard` serves it by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pillarbox.dashboard.access import (
    Role,
    User,
    basic_auth,
    bearer_token,
    first_of,
    local_user,
    proxy_header,
)
from pillarbox.lazy import lazy_names

if TYPE_CHECKING:
    from pillarbox.dashboard.app import Dashboard
    from pillarbox.dashboard.sources import StoreSource
else:
    # Settings and roles can be read without the web framework.
    __getattr__ = lazy_names(
        __name__,
        {"Dashboard": "pillarbox.dashboard.app", "StoreSource": "pillarbox.dashboard.sources"},
    )

__all__ = [
    "Dashboard",
    "Role",
    "StoreSource",
    "User",
    "basic_auth",
    "bearer_token",
    "first_of",
    "local_user",
    "proxy_header",
]
