"""Three databases: a file, and the PostgreSQL and MariaDB of the test session."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

import pymysql

pymysql.install_as_MySQLdb()
_postgres = urlsplit(os.environ["DJANGO_TEST_POSTGRES"])
_mariadb = urlsplit(os.environ["DJANGO_TEST_MARIADB"])
SECRET_KEY = "only for tests"
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "pillarbox.integrations.django",
    "tests.integration.django_project.shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STATIC_URL = "static/"
ROOT_URLCONF = "tests.integration.django_project.urls"
ALLOWED_HOSTS = ["*"]
DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["DJANGO_TEST_SQLITE"],
        "OPTIONS": {"timeout": 60},
    },
    "postgres": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _postgres.path.strip("/"),
        "USER": _postgres.username,
        "PASSWORD": _postgres.password or "",
        "HOST": _postgres.hostname,
        "PORT": _postgres.port,
    },
    "mariadb": {
        "ENGINE": "django.db.backends.mysql",
        "NAME": _mariadb.path.strip("/"),
        "USER": _mariadb.username,
        "PASSWORD": _mariadb.password or "",
        "HOST": _mariadb.hostname,
        "PORT": _mariadb.port,
    },
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PILLARBOX = {"source": "/shop", "routes": "broker", "databases": ["default", "postgres", "mariadb"]}
