"""An app whose limits are in all states that the web page shows."""

from __future__ import annotations

import time

from celery import Celery

from celery_throttle import Throttle
from celery_throttle.limits.feedback import Feedback

LIMITS = {
    "stripe": "4/s burst 8",
    "mail": "30/m burst 5",
    "exports": "2 at once",
    "search": ["20/s burst 20", "10/s burst 10 shadow"],
    "sms": "100/h burst 10",
    "tokens": "40000/day using fixed-window",
}


def make_app(url: str | None = None) -> Celery:
    """Return a new app; without a URL, Celery reads the broker's from the environment."""
    app = Celery("shop", broker=url, backend=url, set_as_current=False)
    throttle = Throttle(app, LIMITS)

    @app.task(name="shop.charge", throttle="stripe", shared=False, lazy=False)
    def charge(order: int) -> None:
        if order % 900 == 899:
            throttle["stripe"].learn(Feedback(refused=True))

    @app.task(name="shop.remind", throttle="mail:{tenant}", shared=False, lazy=False)
    def remind(tenant: str, order: int) -> None: ...

    @app.task(name="shop.export", throttle="exports", shared=False, lazy=False)
    def export(month: int) -> None:  # noqa: ARG001  # tells the tasks apart
        time.sleep(20)

    @app.task(name="shop.notify", throttle="sms", shared=False, lazy=False)
    def notify(phone: int) -> None: ...

    return app


app = make_app()
