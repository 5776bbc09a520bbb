"""The parts of a worker for one shard, without Celery."""

from __future__ import annotations

from types import SimpleNamespace

from celery import Celery

from celery_throttle import Throttle
from celery_throttle.worker.hooks.timers import ThreadTimers
from celery_throttle.worker.shard import Shard
from tests.protocol import Protocol


def make_shard(lines: Protocol) -> Shard:
    app = Celery("shard", broker="memory://", set_as_current=False)
    throttle = Throttle(app, {"api": "1/h burst 1000"}, url=lines.store.url)
    return Shard(
        throttle,
        SimpleNamespace(strategies={}),
        "w",
        ThreadTimers(),
        names_in=list,
        learn=bool,
        refresh_rules=bool,
        poll_interval=1.0,
    )


def test_a_definition_of_a_later_version_ends_no_poll(lines: Protocol) -> None:
    """After a rollback, say. What was claimed by the call that registers limits is dispatched."""
    shard = make_shard(lines)
    shard.register()
    lines.limiter["api"].define("2/h burst 1000")
    definitions = lines.keys.limits
    record = lines.client.hget(definitions, "api")
    assert record
    lines.client.hset(definitions, "api", record.replace(b"burst", b"later"))
    shard._restore()
    shard.throttle.store.close()


def test_what_was_not_reported_is_reported_at_the_end(lines: Protocol) -> None:
    """The last report has failed, or a thread ended its task just as the worker stopped. The task
    would run once more."""
    shard = make_shard(lines)
    lines.park("one", ["api"], may_run=False)
    (row,) = lines.claim("w")
    token = shard.claims.reserve_tokens()
    taken = shard.claims.receive([token, 1, 0, 0, row.message, b"one", b"api", 1])
    assert taken.claim.start()
    taken.claim.settle()
    shard.end()
    assert not lines.client.exists(shard.claims.keys.claims("w"))
    shard.throttle.store.close()
