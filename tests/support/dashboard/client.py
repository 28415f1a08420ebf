"""Asks a dashboard as a browser or a program would, in the loop of the test."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import httpx

from pillarbox.dashboard import Dashboard, Role, User
from pillarbox.dashboard.access import Authorize

__all__ = ["Client", "as_role"]

_TOKEN = re.compile(r'name="csrf" value="([0-9a-f]+)"')


def as_role(role: Role, *, name: str = "ann") -> Authorize:
    """Let everybody in, with this role."""
    return lambda _: User(name, role)


class Client:
    """A client of one dashboard."""

    def __init__(self, app: Any, *, root: str = "", dashboard: Dashboard | None = None) -> None:
        self.dashboard: Dashboard = app if dashboard is None else dashboard
        self._http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url=f"http://localhost{root}", follow_redirects=False
        )

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self._http.get(path, headers=headers)

    async def json(self, path: str) -> Any:
        """Return the document of a page."""
        answer = await self._http.get(path, headers={"accept": "application/json"})
        assert answer.headers["content-type"] == "application/json", answer.text
        return answer.json()

    async def post(
        self, path: str, form: Mapping[str, str], *, token: str | None = None, **headers: str
    ) -> httpx.Response:
        """Send a form with the token of this user, or with another one."""
        user = User("ann", Role.OWNER)
        token = self.dashboard._tokens.issue(user) if token is None else token
        return await self._http.post(path, data={**form, "csrf": token}, headers=headers)

    async def act(self, path: str, form: Mapping[str, str]) -> Any:
        """Send a form that starts a job, wait until the job is over, and return its document."""
        answer = await self.post(path, form)
        assert answer.status_code == 303, answer.text
        location = answer.headers["location"]
        job = self.dashboard.jobs.get(location.rpartition("/")[2])
        assert job is not None
        assert job.task is not None
        await asyncio.wait_for(asyncio.shield(job.task), 60)
        return await self.json(location)
