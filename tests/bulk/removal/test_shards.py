"""Removals with several shards, of which one cannot be reached."""

from __future__ import annotations

import signal

import pytest

from celery_throttle import StoreUnavailableError
from celery_throttle.bulk import retry
from tests.bulk.conftest import ShardedApp
from tests.cli.conftest import Shell
from tests.servers.server import wait_until

pytestmark = [pytest.mark.workers, pytest.mark.thorough]

TASKS = 5


@pytest.fixture
def waiting(sharded: ShardedApp, monkeypatch: pytest.MonkeyPatch) -> ShardedApp:
    """Let tasks wait in three shards, and stop the server of one, which is not the last."""
    for name, key in (("api", ()), ("erp", ()), ("tenant", ("ada",))):
        task = sharded.task(name)
        sharded.throttle.fan_out([task.s(n, *key) for n in range(TASKS)], name)
    monkeypatch.setattr(retry, "RETRY_TIMEOUT_SECONDS", 0.0)
    sharded.erp.stop()
    return sharded


def left(sharded: ShardedApp) -> int:
    """Return the number of tasks that wait in the other shards."""
    return int(sharded.throttle.count_waiting().waiting)


@pytest.mark.parametrize("remove", ["drain_all", "drop_all"])
def test_tasks_in_other_shards_are_removed(waiting: ShardedApp, remove: str) -> None:
    with pytest.raises(StoreUnavailableError):
        getattr(waiting.throttle, remove)()
    assert left(waiting) == 0


def test_a_purge_discards_tasks_of_other_shards(waiting: ShardedApp) -> None:
    with pytest.raises(StoreUnavailableError):
        waiting.throttle.purge(["other", "celery"])
    assert left(waiting) == 0


def test_a_preview_names_the_lost_shard(waiting: ShardedApp) -> None:
    found = waiting.throttle.count_waiting()
    assert (found.waiting, found.queues) == (2 * TASKS, {"celery": 2 * TASKS})
    assert found.lost_shards == ("erp",)
    with pytest.raises(StoreUnavailableError):
        waiting.throttle["erp"].count_waiting()


def test_the_command_asks_with_the_name_of_the_lost_shard(
    waiting: ShardedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_throttle.cli.shared.console._can_ask", lambda: True)
    text = Shell(waiting.app, "celery").run("drain", "--all", typed="n\n", code=1)
    assert "10 tasks wait: 10 in queue celery; shard erp cannot be reached, its tasks are" in text


def test_the_command_asks_if_all_tasks_may_wait_in_the_lost_shard(
    waiting: ShardedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard may be back before the command reaches it."""
    monkeypatch.setattr("celery_throttle.cli.shared.console._can_ask", lambda: True)
    with pytest.raises(StoreUnavailableError):
        waiting.throttle.drain_all()
    text = Shell(waiting.app, "celery").run("drop", "--all", typed="n\n", code=1)
    assert "0 tasks wait; shard erp cannot be reached, its tasks are not counted" in text


def test_a_fan_out_in_a_lost_shard_counts_its_tasks_once_they_are_dropped_again(
    sharded: ShardedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were drained, and wait for a limit in another shard. Until then, they wait again."""
    erp, api = sharded.task("erp"), sharded.task("api")
    job = sharded.throttle.fan_out([erp.s(n).set(task_id=f"{n}") for n in range(2)], "nightly")
    sharded.throttle["erp"].drain()
    sharded.throttle.purge()
    sharded.throttle.fan_out([api.s(0)], "first")
    headers = {"throttle_fan_out": "nightly", "throttle_fan_out_shard": "erp"}
    for number in range(2):
        api.apply_async((number,), task_id=f"{number}", headers=headers)
    monkeypatch.setattr(retry, "RETRY_TIMEOUT_SECONDS", 0.0)
    sharded.erp.signal(signal.SIGSTOP)
    with pytest.raises(StoreUnavailableError):
        sharded.throttle["api"].drop()
    assert sharded.throttle["api"].count_waiting().waiting == 3
    sharded.erp.signal(signal.SIGCONT)
    wait_until(lambda: not sharded.throttle.status().lost_shards, "the server")
    assert sharded.throttle["api"].drop().removed == 3
    progress = job.progress()
    assert (progress.revoked, progress.complete) == (2, True)
