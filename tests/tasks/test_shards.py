"""The limits of an app with shards: those of one task are in one shard, where a call uses them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import redis
from celery import Celery

from celery_throttle import ConfigurationError, Throttle
from celery_throttle.limits.shards import Shard
from celery_throttle.store.keys import DEFAULT_PREFIX, shard_prefix

LIMITS = {
    "api": "100/h burst 10",
    "mail": "100/h burst 20",
    "news": "100/h burst 30",
    "tenant": "100/h burst 40",
    "seat": "2 at once",
}
SHARDS: dict[str, Any] = {
    "mail": {"limits": ["mail", "news"]},
    "tenants": {"limits": ["tenant", "seat"], "by_key": 4},
}
_numbers = count()


@pytest.fixture
def app(redis_url: str) -> Celery:
    app = Celery("sharded", broker=redis_url, set_as_current=False)
    app.conf.update(throttle_shards=SHARDS, throttle_limits=LIMITS, throttle_timeout=30)
    Throttle(app)
    return app


def task_of(app: Any, throttle: Any) -> Any:
    def run(one: int = 1, other: int = 1) -> None:
        """Do nothing."""

    name = f"task{next(_numbers)}"
    return app.task(run, name=name, throttle=throttle, shared=False)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (["api", "mail"], "'api' in shard 'home' and 'mail' in shard 'mail'.* in the same entry"),
        (["mail", "tenant:{one}"], "'mail' in shard 'mail' and 'tenant:{one}' in shard 'tenants'"),
        (
            ["tenant:{one}", "seat:{other}"],
            "'tenant:{one}' in shard 'tenants' and 'seat:{other}' in .* give them the same key",
        ),
        (["tenant"], "'tenant' is in shard 'tenants', .* it has no state without a key"),
    ],
)
def test_limits_of_two_shards_are_an_error_wherever_the_task_is_defined_or_sent(
    app: Celery, limits: Any, message: str
) -> None:
    task = task_of(app, limits)
    app.finalize()
    sends: list[Callable[[], Any]] = [task.delay, lambda: app.send_task(task.name)]
    for send in (*sends, app.throttle.check):  # type: ignore[attr-defined]
        with pytest.raises(ConfigurationError, match=f"task '{task.name}': .*{message}"):
            send()


@pytest.mark.parametrize("limits", [["mail", "news"], ["tenant:{one}", "seat:{one?}"], ["api"]])
def test_limits_of_one_shard_are_allowed(app: Celery, limits: Any, client: Any) -> None:
    task_of(app, limits).delay()
    assert client.llen("celery") == 1
    client.delete("celery")


def test_a_route_with_limits_of_two_shards_is_an_error(app: Celery) -> None:
    app.conf.throttle_routes = {"shop.*": ["api", "mail"]}
    with pytest.raises(ConfigurationError, match=r"throttle_routes\['shop.\*'\]: limits of two sh"):
        app.throttle.check()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("shards", ["mail"], "throttle_shards is .'mail'.; allowed: a dict such as"),
        ("shards", {"mail": {"limits": ["mail"], "url": "amqp://x"}}, "has url 'amqp://x'; allo"),
    ],
)
def test_wrong_settings_are_named(app: Celery, name: str, value: Any, message: str) -> None:
    app.conf[f"throttle_{name}"] = value
    with pytest.raises(ConfigurationError, match=message):
        app.throttle.check()  # type: ignore[attr-defined]


@pytest.mark.parametrize("shards", [{}, SHARDS])
def test_a_call_is_one_command_in_the_shard_of_its_limit(
    app: Celery, client: Any, shards: Any
) -> None:
    app.conf.throttle_shards = shards
    throttle: Throttle = app.throttle  # type: ignore[attr-defined]
    prefix = shard_prefix(DEFAULT_PREFIX, Shard("mail")) if shards else DEFAULT_PREFIX
    throttle["mail"].acquire()
    assert client.exists(f"{prefix}:state:mail")
    before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    for _ in range(10):
        throttle["mail"].acquire()
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] - before == 10


def test_limits_are_registered_each_in_its_shard(app: Any, redis_url: str) -> None:
    app.throttle.register()
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        assert client.hkeys(f"{DEFAULT_PREFIX}:limits") == ["api"]
        mail = shard_prefix(DEFAULT_PREFIX, Shard("mail"))
        assert sorted(client.hkeys(f"{mail}:limits")) == ["mail", "news"]
