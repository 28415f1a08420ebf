"""The dashboard inside Django: below its path, for its users, with its own check of forms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pillarbox.integrations.django import dashboard
from pillarbox.integrations.django.dashboard import DashboardThread

ROOT = "/ops/pillarbox"


@pytest.fixture(scope="session")
def threads(project: dict[str, str]) -> Iterator[list[DashboardThread]]:
    """The threads of dashboards. The view keeps its own for all tests of a process, so they end with those."""
    found: list[DashboardThread] = []

    class Thread(DashboardThread):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            found.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dashboard, "DashboardThread", Thread)
        yield found
    for thread in found:
        thread.close()


@pytest.fixture
def people(threads: list[DashboardThread]) -> Callable[..., Any]:
    """Makes clients that are logged in."""
    from django.contrib.auth.models import User
    from django.test import Client

    def log_in(name: str, **options: Any) -> Any:
        client = Client(enforce_csrf_checks=True)
        User.objects.filter(username=name).delete()  # another test may have made it
        client.force_login(User.objects.create_user(name, **options))
        return client

    return log_in


def test_users_see_and_do_what_their_rights_allow(people: Callable[..., Any], using: str) -> None:
    if using != "default":
        pytest.skip("The view keeps the database that it met first.")
    owner = people("ann", is_staff=True, is_superuser=True)
    viewer = people("bob", is_staff=True)
    customer = people("eve")

    home = owner.get(f"{ROOT}/")
    assert (home.status_code, home["location"]) == (307, f"{ROOT}/main/")
    page = owner.get(f"{ROOT}/main/")
    assert page.status_code == 200
    assert "ann · owner" in page.content.decode()
    assert "script-src 'self'" in page["content-security-policy"]
    links = re.findall(r'(?:href|src|action)="([^"]*)"', page.content.decode())
    assert all(link.startswith((f"{ROOT}/", "?", "#")) for link in links)
    assert owner.get(f"{ROOT}/-/static/dashboard.css").status_code == 200
    assert owner.get(f"{ROOT}/main/live").status_code == 404
    assert owner.get(f"{ROOT}/main/pulse").json()["failed_text"] == ""
    assert "bob · viewer" in viewer.get(f"{ROOT}/main/relays").content.decode()
    assert viewer.get(f"{ROOT}/main/redrive?destination=billing").status_code == 403
    assert customer.get(f"{ROOT}/main/").status_code == 401


def test_forms_carry_the_dashboards_own_token(people: Callable[..., Any], using: str) -> None:
    if using != "default":
        pytest.skip("The view keeps the database that it met first.")
    owner = people("ann", is_staff=True, is_superuser=True)

    assert owner.post(f"{ROOT}/main/failures/note", {"note": "x"}).status_code == 403
    from django.conf import settings

    from pillarbox.dashboard import Role, User
    from pillarbox.dashboard.access import FormTokens

    token = FormTokens(f"pillarbox-dashboard:{settings.SECRET_KEY}").issue(User("ann", Role.OWNER))
    form = {"note": "x", "destination": "billing", "fingerprint": "f", "csrf": token}
    body = "&".join(f"{name}={value}" for name, value in form.items())
    answer = owner.post(f"{ROOT}/main/failures/note", body, content_type="application/x-www-form-urlencoded")
    assert answer.status_code == 303
    assert answer["location"].startswith(f"{ROOT}/main/failures/group?")
