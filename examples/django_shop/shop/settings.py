import os
from pathlib import Path

BASE_DIR = Path(__file__).parents[1]

SECRET_KEY = "only for this example"
DEBUG = True
INSTALLED_APPS = ["orders"]
ROOT_URLCONF = "shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE", BASE_DIR / "db.sqlite3"),
    }
}

CELERY_BROKER_URL = os.environ.get("CELERY_BROKER_URL", "amqp://guest:guest@localhost:5672//")
CELERY_THROTTLE_URL = os.environ.get("THROTTLE_URL", "redis://localhost:6379/0")
CELERY_THROTTLE_LIMITS = {
    "stripe": "20/s burst 5",
    "mail": "2/s",
}
