"""Tasks that ``throttle_keep_waiting`` has replaced leave their lines with the others."""

from __future__ import annotations

from typing import Any

import pytest

from celery_throttle.bulk.removal.counts import Removal
from celery_throttle.observe.status_text import task_text
from tests.bulk.removal.conftest import MakeSite, Site


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    """An app of which four of five tasks of each key have been replaced; there is no worker."""
    site = make_site()
    options: dict[str, Any] = {"throttle": ["api", "mail:{who}"], "throttle_keep_waiting": "newest"}

    @site.app.task(name="index", shared=False, lazy=False, **options)  # type: ignore[untyped-decorator]  # an app of any kind
    def index(who: str, number: int) -> None: ...

    site.throttle["api"].pause(None)
    return site


def test_drain_sends_the_newest_last(site: Site) -> None:
    sent = site.send(5, "index", "a")
    site.park()
    assert site.throttle["api"].count_waiting().waiting == 5
    assert site.throttle["api"].drain() == Removal(5, 0, 0, 0)
    assert [message.headers["id"] for message in site.at_broker()] == sent
    assert (site.waiting(), site.claimed()) == (0, 0)
    assert not site.client.keys("*:line:*")


def test_drop_takes_those_that_need_the_limit_or_the_key(site: Site) -> None:
    of_a, of_b = site.send(5, "index", "a"), site.send(5, "index", "b")
    [other] = site.send(1)
    site.park()
    assert site.throttle["mail", "a"].count_waiting().queues == {"celery": 5}
    assert site.throttle["mail", "a"].drop().removed == 5
    assert {site.app.AsyncResult(one).state for one in of_a} == {"REVOKED"}
    assert {site.app.AsyncResult(one).state for one in (*of_b, other)} == {"PENDING"}
    assert site.throttle["mail"].drop() == Removal(5, 0, 0, 0)
    assert site.throttle.drop_all().removed == 1
    assert site.waiting() == 0


def test_the_status_of_a_task_says_that_it_was_replaced(site: Site) -> None:
    old, new = site.send(2, "index", "a")
    site.park()
    found = site.throttle.explain(old)
    assert (found.location, found.task, found.blocked_by) == ("line", "index", None)
    assert [(name, key) for name, key, _ in found.limits] == [("api", None), ("mail", "a")]
    assert (found.forecast, found.pauses) == (None, ())
    assert "to end as revoked: another task waits in its stead" in task_text(found, None)
    assert site.throttle.explain(new).blocked_by == ("api", None)
