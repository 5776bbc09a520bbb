"""What workers report of limits: in their logs, and by remote control."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import redis

from celery_throttle import Throttle
from celery_throttle.worker.health.report import StatusReport
from tests.apps.reports import app
from tests.programs import run_python
from tests.servers.server import wait_until
from tests.workers import StartWorker, Worker

pytestmark = pytest.mark.workers


@pytest.fixture
def throttle(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Throttle]:
    """The app's limits in this process, as any other one of the same site has them."""
    monkeypatch.setenv("CELERY_BROKER_URL", redis_url)
    monkeypatch.setattr(app.conf, "broker_url", redis_url)
    found: Throttle = app.throttle  # type: ignore[attr-defined]  # Celery apps take attributes
    for name in ("settings", "backend", "store", "plans", "keys", "_broker"):
        found.__dict__.pop(name, None)
    yield found
    found.store.close()


def celery(redis_url: str, *args: str) -> str:
    env = {"CELERY_BROKER_URL": redis_url}
    return run_python("-m", "celery", "-A", "tests.apps.reports", *args, env=env)


def calls_of(throttle: Throttle) -> int:
    with redis.Redis.from_url(throttle.settings.url) as client:
        stats: Any = client.info("commandstats")
    return int(stats["cmdstat_evalsha"]["calls"])


def wait_for_line(worker: Worker, *texts: str) -> None:
    wait_until(
        lambda: any(all(text in line for text in texts) for line in worker.log().splitlines()),
        f"a log line with {' and '.join(texts)}",
    )


def test_limits_in_force_are_logged_at_the_start(
    redis_url: str, throttle: Throttle, start_worker: StartWorker
) -> None:
    throttle.register()
    throttle["api"].define("7/s", reason="incident 12", by="ann")
    throttle["tenant"].pause(None, reason="maintenance", by="bob")
    throttle["tenant", "t1"].pause(600)
    worker = start_worker("tests.apps.reports", redis_url)
    wait_for_line(worker, "Limit in force: api 7/s", "run time by ann: incident 12")
    wait_for_line(
        worker,
        "Limit in force: tenant 1000/s burst 1000 (code",
        "paused until it is resumed, by bob: maintenance; 1 key paused",
    )


@pytest.mark.thorough
def test_changes_and_waiting_tasks_are_logged(
    redis_url: str, throttle: Throttle, start_worker: StartWorker
) -> None:
    throttle.register()
    throttle["api"].pause(None, reason="down", by="ann")
    app.send_task("tests.apps.reports.call", ("t1",))
    worker = start_worker("tests.apps.reports", redis_url)
    wait_for_line(worker, "api 50/s: 1 waiting, paused until it is resumed, by ann: down")
    throttle["api"].resume(reason="up again", by="bob")
    wait_for_line(worker, "Limit changed: api: resumed by bob: up again")
    throttle["api"].define("9/s", lasts=3600, by="bob")
    wait_for_line(worker, "Limit changed: api: 9/s for 1 h instead of 50/s by bob")
    wait_until(lambda: throttle["api"].status().recent[-1].totals.granted == 1, "a unit")


@pytest.mark.parametrize(("workers", "shares"), [(2, {True}), (400, {False})])
def test_many_workers_that_begin_at_one_time_do_not_report_at_one_time(
    throttle: Throttle, workers: int, shares: set[bool]
) -> None:
    throttle.register()

    def reports() -> bool:
        """Whether a worker of so many makes calls after its first heartbeat."""
        report = StatusReport(throttle)
        report.begin()
        before = calls_of(throttle)
        report.run("", workers)
        return calls_of(throttle) > before

    assert {reports() for _ in range(20)} == shares


@pytest.mark.thorough
def test_tasks_that_no_worker_takes(
    redis_url: str, throttle: Throttle, start_worker: StartWorker
) -> None:
    throttle.register()
    throttle["api"].pause(None)
    app.send_task("tests.apps.reports.call", ("t1",))
    first = start_worker("tests.apps.reports", redis_url)
    wait_until(lambda: throttle["api"].status().waiting == 1, "a waiting task")
    first.terminate()
    first.wait()
    wait_until(lambda: throttle.status().workers == 0, "no worker")
    (stranded,) = throttle.status().stranded
    assert (stranded.tasks, stranded.why) == (1, "queue")
    throttle["api"].resume()
    start_worker("tests.apps.reports", redis_url)
    wait_until(lambda: throttle.status().stranded == (), "a consumed queue")


def test_each_unit_is_counted(
    redis_url: str, throttle: Throttle, start_worker: StartWorker
) -> None:
    workers = [start_worker("tests.apps.reports", redis_url, wait=False) for _ in range(2)]
    for worker in workers:
        worker.wait_until_ready()

    def run_all(count: int) -> None:
        wait_until(
            lambda: sum(worker.log().count("succeeded in") for worker in workers) == count,
            f"{count} runs",
        )

    app.send_task("tests.apps.reports.call", ("t0",))  # it passes at once
    run_all(1)
    # Units of a task that is late between the gate and its process are lost, and not counted.
    throttle["api"].pause(None)
    for number in range(1, 150):
        app.send_task("tests.apps.reports.call", (f"t{number % 7}",))
    wait_until(lambda: throttle["api"].status().waiting == 149, "the others wait")
    throttle["api"].resume()
    run_all(150)
    for limit in throttle.status().limits:
        totals = limit.totals
        # The units of a claimed task that goes back to its line are spent.
        assert (totals.granted, limit.waiting) == (150 + totals.requeued, 0), totals
        assert totals.parked + totals.requeued == totals.claimed + totals.handed_out


@pytest.mark.thorough
def test_remote_control(redis_url: str, throttle: Throttle, start_worker: StartWorker) -> None:
    throttle.register()
    workers = [start_worker("tests.apps.reports", redis_url, wait=False) for _ in range(2)]
    for worker in workers:
        worker.wait_until_ready()
    names = ",".join(worker.hostname for worker in workers)
    control, inspect = (
        partial(celery, redis_url, kind, "--destination", names, "--timeout", "10")
        for kind in ("control", "inspect")
    )
    output = control("throttle_pause", "tenant", "600", "spam", "t1")
    assert output.count("OK") == 2
    (pause,) = throttle["tenant", "t1"].status().pauses
    assert pause.author is not None
    assert pause.author.reason == "spam"
    assert throttle["tenant"].status().pauses == ()
    assert len(throttle.changes()) == 1
    assert '"t1"' in inspect("--json", "throttle", "tenant", "t1")
    control("throttle_resume", "tenant", "t1")
    assert throttle["tenant", "t1"].status().pauses == ()
    control("throttle_define", "api", "5/s burst 2")
    assert throttle["api"].status().clauses == ("5/s burst 2",)
    assert "is not a rate" in control("throttle_define", "api", "fast")
    control("throttle_undefine", "api")
    assert throttle["api"].status().clauses == ("50/s",)
    assert '"unknown"' in inspect("--json", "throttle_why", "nope")
    assert '"stranded": []' in inspect("--json", "stats")
