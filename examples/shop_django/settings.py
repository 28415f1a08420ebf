"""A Django project with nothing but what the shop needs."""

from __future__ import annotations

import os

BROKER = os.environ.get("SHOP_BROKER", "nats://127.0.0.1:4222")

SECRET_KEY = "only for this example"
DEBUG = True
ROOT_URLCONF = "examples.shop_django.urls"
INSTALLED_APPS = ["pillarbox.integrations.django", "examples.shop_django.shop"]
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_FILE", "shop_django.db"),
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 30},
    }
}

PILLARBOX = {"source": "/shop", "routes": "broker"}
