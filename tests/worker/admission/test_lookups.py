"""Keys whose limits a function gives, without a worker."""

from __future__ import annotations

import threading
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

from celery import Celery

from celery_throttle import LimitByKey, Throttle
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import Requirement
from celery_throttle.worker.admission.lookups import KeyLookups

REF = LimitRef("tenant", "1")
NEEDS_KEY = Requirement((REF,), (MILLION,))


class Request:
    """A request that waits for the limit of its key."""


def test_a_request_that_comes_several_times_during_a_call_is_readmitted_once(
    redis_url: str,
) -> None:
    may_end, soon = threading.Event(), SimpleQueue[Any]()
    readmitted: list[Any] = []

    def look_up(_: str) -> str:
        assert may_end.wait(60)
        return "5/h burst 5"

    app = Celery("lookups", set_as_current=False)
    throttle = Throttle(app, {"tenant": LimitByKey("1/h", look_up)}, url=redis_url)
    timers: Any = SimpleNamespace(
        call_soon=lambda function, *args: soon.put(partial(function, *args)),
        call_after=lambda *_: None,
    )
    lookups = KeyLookups(throttle, timers, readmitted.append)
    first, second = Request(), Request()
    for request in (first, second, first, first):
        assert lookups.must_wait(request, NEEDS_KEY)
    assert not lookups.are_known(NEEDS_KEY)
    may_end.set()
    soon.get(timeout=60)()
    assert readmitted == [first, second]
    assert lookups.are_known(NEEDS_KEY)
    assert not lookups.must_wait(first, NEEDS_KEY)
    assert throttle["tenant", 1].status().clauses == ("5/h burst 5",)
