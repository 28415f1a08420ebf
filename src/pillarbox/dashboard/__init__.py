"""The dashboard: stores in the browser, for operators. Needs `pillarbox[dashboard]`.

`Dashboard(stores, authorize=…)` is an ASGI app. `pillarbox dashboard` serves it by itself.
"""

from __future__ import annotations

from pillarbox.errors import MissingExtra

try:
    import jinja2  # noqa: F401
    import starlette  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtra("starlette and jinja2", extra="dashboard", needed_for="The dashboard") from error

from pillarbox.dashboard.access import (
    Role,
    User,
    basic_auth,
    bearer_token,
    first_of,
    local_user,
    proxy_header,
)
from pillarbox.dashboard.app import Dashboard
from pillarbox.dashboard.sources import StoreSource

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
