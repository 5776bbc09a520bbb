"""``throttle_publish = "line"`` with several shards: a task joins the line in its own shard."""

from __future__ import annotations

from typing import Any

import pytest

from celery_throttle.operations.shards import ShardIdentity
from tests.bulk.conftest import ShardedApp
from tests.servers.server import wait_until
from tests.shards import home_store_of, shard_limiter

pytestmark = [pytest.mark.workers, pytest.mark.thorough]

TASKS = 10


def let_one_wait(sharded: ShardedApp, name: str, *key: str) -> Any:
    """Let a worker park the first task of a limit; return the limit, which is paused."""
    limit = sharded.throttle[name if not key else (name, key[0])]
    limit.pause(3600)
    worker = sharded.start_worker()
    sharded.task(name).delay(0, *key)
    wait_until(lambda: limit.status().waiting == 1, "the first in its line")
    worker.terminate()
    worker.wait()
    return limit


def run_all(sharded: ShardedApp, limit: Any, name: str, count: int) -> None:
    sharded.start_worker()
    limit.resume()
    sharded.has_run(name, count)
    assert sharded.runs(name) == list(range(count))


@pytest.mark.parametrize(("name", "key"), [("api", ()), ("erp", ()), ("tenant", ("ada",))])
def test_a_task_that_is_sent_joins_those_that_wait_in_its_shard(
    sharded: ShardedApp, name: str, key: tuple[str, ...]
) -> None:
    """It reaches the worker once, in order, and not through the broker."""
    limit = let_one_wait(sharded, name, *key)
    for number in range(1, TASKS):
        sharded.task(name).delay(number, *key)
    assert (sharded.at_broker(), limit.status().waiting) == (0, TASKS)
    run_all(sharded, limit, name, TASKS)


def test_the_shard_where_other_processes_have_put_a_limit_has_its_line(sharded: ShardedApp) -> None:
    """The settings of this process say the home shard."""
    identity = ShardIdentity("erp", server=sharded.erp.url)
    other = shard_limiter(
        sharded.erp.url, "erp", {"api": "1000/s"}, home_url=sharded.home.url, identity=identity
    )
    other["api"].acquire()
    limit = let_one_wait(sharded, "api")
    assert other["api"].status().waiting == 1
    sharded.reload()
    for number in range(1, TASKS):
        sharded.task("api").delay(number)
    assert (sharded.at_broker(), other["api"].status().waiting) == (0, TASKS)
    run_all(sharded, limit, "api", TASKS)
    other.store.close()
    home_store_of(other).close()


def test_the_broker_has_what_the_lost_server_of_a_shard_does_not_take(sharded: ShardedApp) -> None:
    """Other shards are as ever."""
    let_one_wait(sharded, "erp")
    api = let_one_wait(sharded, "api")
    sharded.erp.stop()
    for number in range(1, TASKS):
        sharded.task("erp").delay(number)
        sharded.task("api").delay(number)
    assert (sharded.at_broker(), api.status().waiting) == (TASKS - 1, TASKS)
    sharded.erp.start()  # without its data
    sharded.start_worker()
    throttle = sharded.reload().throttle  # the old one goes on avoiding the server for a moment
    throttle["erp"].resume()
    throttle["api"].resume()
    sharded.has_run("erp", TASKS - 1)
    sharded.has_run("api", TASKS)
    assert sharded.runs("api") == list(range(TASKS))
    assert sorted(sharded.runs("erp")) == list(range(1, TASKS))


def test_a_lost_home_server_is_not_asked(sharded: ShardedApp) -> None:
    limit = let_one_wait(sharded, "erp")
    sharded.home.stop()
    for number in range(1, TASKS):
        sharded.task("erp").delay(number)
    assert sharded.at_broker() == 0
    sharded.home.start()
    assert limit.status().waiting == TASKS
    run_all(sharded, limit, "erp", TASKS)
