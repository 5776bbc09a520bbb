import os

from celery import Celery
from celery_throttle import Throttle

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
throttle = Throttle(app)
app.autodiscover_tasks()
