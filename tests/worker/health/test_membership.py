"""Heartbeats find out that a lost server is back, also one that was lost before they began."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from celery import Celery

from celery_throttle import StoreUnavailableError, Throttle
from celery_throttle.worker.health.membership import Heartbeats, Membership
from celery_throttle.worker.health.outage import OutageMode
from celery_throttle.worker.health.queues import WorkerQueues
from celery_throttle.worker.slots import TaskSlots
from tests.servers.server import Server, wait_until


@pytest.fixture
def called() -> list[str]:
    return []


def make_membership(throttle: Throttle, **on: Any) -> Membership:
    ignore = dict.fromkeys(("on_return", "on_heartbeat"), lambda: None)
    queues = WorkerQueues(throttle, lambda: None)
    return Membership(throttle, "worker", queues, names_in=list, **{**ignore, **on})


@pytest.fixture
def membership(own_server: Server, called: list[str]) -> Iterator[Membership]:
    """That of a worker without limits, which does not send a heartbeat before its thread does."""
    app = Celery("members", set_as_current=False)
    throttle = Throttle(app, {}, url=own_server.url)
    membership = make_membership(
        throttle,
        on_return=lambda: called.append("return"),
        on_heartbeat=lambda: called.append("heartbeat"),
    )
    heartbeats = Heartbeats({throttle.store: [membership]})
    heartbeats.start()
    yield membership
    heartbeats.stop()
    throttle.store.close()


@pytest.mark.thorough
@pytest.mark.parametrize("is_watched", [True, False])
def test_a_lost_server_is_called_until_it_is_back(
    own_server: Server, membership: Membership, called: list[str], *, is_watched: bool
) -> None:
    """Without a watcher: the app has called the server before it had a worker."""
    store = membership.throttle.store
    if is_watched:
        store.breaker.watcher = lambda _: membership.reconnect()
    own_server.stop()
    with pytest.raises(StoreUnavailableError):
        store.run(membership.call())
    store.breaker.watcher = lambda _: membership.reconnect()
    membership.wake_up()
    own_server.start()
    wait_until(lambda: "heartbeat" in called, "a heartbeat")
    assert called == ["return", "heartbeat"]
    assert not store.breaker.is_open


def test_a_server_that_is_back_while_an_outage_begins_ends_it(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of the heartbeats may call it before the outage has begun for good."""
    throttle = Throttle(Celery("members", set_as_current=False), {}, url=redis_url)
    membership = make_membership(throttle)
    heartbeats = Heartbeats({throttle.store: [membership]})
    outage = OutageMode(throttle, membership, TaskSlots("worker", lambda: None))
    membership.on_return = outage.end

    def call_and_count_workers(_: Membership) -> int:
        heartbeats._reconnect(throttle.store)
        return 1

    monkeypatch.setattr(Membership, "workers", property(call_and_count_workers))
    outage.begin(StoreUnavailableError("it is lost"))
    heartbeats.start()
    wait_until(lambda: not outage.is_on, "the end of the outage")
    heartbeats.stop()
    throttle.store.close()


def test_an_error_of_one_shard_leaves_the_other_ones_on_its_server_as_they_are(
    redis_url: str, called: list[str]
) -> None:
    throttle = Throttle(Celery("members", set_as_current=False), {}, url=redis_url)

    def fail() -> None:
        called.append("error")
        raise ValueError

    on = {"on_return": partial(called.append, "return"), "on_heartbeat": partial(called.append, "")}
    memberships = [
        make_membership(throttle, on_return=fail, on_heartbeat=fail),
        make_membership(throttle, **on),
    ]
    heartbeats = Heartbeats({throttle.store: memberships})
    heartbeats.reconnect(throttle.store)
    heartbeats.start()
    wait_until(lambda: len(called) == 4, "the calls of both shards")
    assert called == ["error", "return", "error", ""]
    heartbeats.stop()
    throttle.store.close()
