import os
from pathlib import Path

BASE_DIR = Path(__file__).parents[1]

SECRET_KEY = "only for this example"
DEBUG = True
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "orders",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
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
STATIC_URL = "static/"
ROOT_URLCONF = "shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE", BASE_DIR / "db.sqlite3"),
    }
}

INSTALLED_APPS += ["celery_throttle.django"]
CELERY_BROKER_URL = os.environ.get("SHOP_BROKER_URL", "amqp://guest:guest@localhost:5672//")
CELERY_THROTTLE_URL = os.environ.get("THROTTLE_URL", "redis://localhost:6379/0")
CELERY_THROTTLE_LIMITS = {
    "stripe": "20/s burst 5",
    "mail": "2/s",
}
