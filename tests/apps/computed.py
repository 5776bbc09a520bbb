"""Tasks whose limits and costs are functions of their arguments; each notes what it does."""

# ruff: noqa: ARG001, ARG005  # the arguments are for the limits

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery import Celery

from celery_throttle import LimitByKey, Throttle
from celery_throttle.worker import tuning

tuning.FUNCTION_SECONDS = float(os.environ.get("FUNCTION_SECONDS", "600"))

STORE = os.environ.get("THROTTLE_URL") or os.environ.get("CELERY_BROKER_URL", "redis://localhost")


def look_up(user: str) -> Any:
    """The limit of a user, by a table that people change."""
    note("lookups", user)
    limit = read_plan("limits", user)
    if limit == "raise":
        raise LookupError("no such plan")
    if limit == "end":
        raise SystemExit("no plans")
    if limit == "slow":
        time.sleep(5)
        return "1000/s"
    return int(limit) if limit == "5" else limit


LIMITS: Any = {"plan": "1/h", "mail": "1/h burst 10", "all": "1000/s burst 10", "user": "1/h"}
CODE: Any = {**LIMITS, "user": LimitByKey("1/h", look_up, refresh=1)}


def note(what: str, text: Any = "") -> None:
    with redis.Redis.from_url(STORE) as client:
        client.rpush(f"computed-{what}", str(text))


def read_plan(table: str, user: str) -> Any:
    with redis.Redis.from_url(STORE, decode_responses=True) as client:
        return client.hget(table, user)


def by_plan(user: str) -> Any:
    """The limit of a user by the row of a table; users without a row have none."""
    note("calls", user)
    plan = read_plan("plans", user)
    return None if plan is None else throttle["plan", plan]


def planned(self: Any, user: str, number: int = 0) -> None:
    note("runs", user)


def inner_user(user: str) -> None:
    note("runs", user)


def inner(user: str) -> None:
    """It has the unit of its limit, so it needs no other in its body."""
    throttle["plan", read_plan("first-plans", user)].acquire()
    note("runs", user)


def go_wrong(what: str) -> Any:
    if what == "raises":
        raise LookupError("no such tenant")
    if what == "ends":
        raise SystemExit("no plans")
    if what == "blocks":
        with redis.Redis.from_url(STORE) as client:
            while not client.exists("go-on"):
                time.sleep(0.01)
        return "all"
    return {"number": 5, "unknown": "males:7", "template": "mail:{who}"}[what]


def nothing(what: str) -> str:
    return what


def send(to: Any, tenant: Any = None) -> str:
    return "sent"


def make_app(url: str, publish: str = "broker") -> Celery:
    app = Celery("computed", broker=url, backend=url, set_as_current=False)
    app.conf.update(broker_connection_retry_on_startup=True)
    Throttle(app, CODE, url=url, publish=publish)

    def add(function: Any, name: str, **options: Any) -> None:
        decorate: Any = app.task(name=name, shared=False, **options)
        decorate(function)

    add(planned, "planned", throttle=by_plan, bind=True)
    add(inner_user, "user", throttle="user:{user}")
    add(inner, "inner", throttle=by_plan)
    add(nothing, "wrong", throttle=go_wrong)
    costs: Any = {"mail": lambda to: to, "all": lambda to: 2}
    limits: Any = ["mail:x", lambda to: "all" if to else None]
    add(send, "costly", throttle=limits, throttle_cost=costs)
    add(send, "lengthy", throttle="mail:{tenant?}", throttle_cost="len({to})")
    return app


app: Any = make_app(STORE)
throttle = app.throttle
