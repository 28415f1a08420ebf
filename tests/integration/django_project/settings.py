"""Two databases: a file, and the PostgreSQL of the test session."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

_postgres = urlsplit(os.environ["DJANGO_TEST_POSTGRES"])
SECRET_KEY = "only for tests"
USE_TZ = True
INSTALLED_APPS = ["pillarbox.integrations.django", "tests.integration.django_project.shop"]
ROOT_URLCONF = "tests.integration.django_project.urls"
ALLOWED_HOSTS = ["*"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["DJANGO_TEST_SQLITE"],
        "OPTIONS": {"timeout": 30},
    },
    "postgres": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _postgres.path.strip("/"),
        "USER": _postgres.username,
        "PASSWORD": _postgres.password or "",
        "HOST": _postgres.hostname,
        "PORT": _postgres.port,
    },
}
PILLARBOX = {"source": "/shop", "routes": "broker"}
