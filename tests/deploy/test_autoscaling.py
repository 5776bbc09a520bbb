"""The figures to scale on, from real workers, through the exporter and a Prometheus server."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from celery_throttle import Limiter
from tests.apps import stops
from tests.deploy.expressions import ALERTS, DEPLOY, RECORDING_RULES, load, rules
from tests.programs import ROOT
from tests.servers.prometheus import Prometheus
from tests.servers.server import Server, wait_until
from tests.tether import Tethered
from tests.workers import StartWorker, Worker

pytestmark = [pytest.mark.workers, pytest.mark.timeout(600), pytest.mark.thorough]

SCALED_OBJECT: dict[str, Any] = load(DEPLOY / "keda" / "scaledobject.yml")
TRIGGERS = {trigger["name"]: trigger for trigger in SCALED_OBJECT["spec"]["triggers"]}

FOREVER = 300.0

_SERVED = re.compile(r"Serving metrics on http://([\d.:]+)/metrics")


def query_of(trigger: str) -> str:
    """Return the query of a trigger, for the queue of the tests."""
    query: str = TRIGGERS[trigger]["metadata"]["query"]
    return query.replace('queue="celery"', 'queue="stops"')


@pytest.fixture
def exporter(own_server: Server, tmp_path: Path) -> Iterator[str]:
    """The address of `celery throttle metrics`."""
    command = [
        *(sys.executable, "-m", "celery", "-A", "tests.apps.stops"),
        *("throttle", "metrics", "--host", "127.0.0.1", "--port", "0"),
    ]
    env = {"CELERY_BROKER_URL": own_server.url, "THROTTLE_URL": own_server.url}
    running = Tethered(command, tmp_path / "exporter.log", env, cwd=ROOT)
    running.wait_until(lambda: bool(_SERVED.search(running.log())), seconds=60)
    [address] = _SERVED.findall(running.log())
    yield address
    running.end()


@pytest.fixture
def prometheus(exporter: str, tmp_path: Path) -> Iterator[Prometheus]:
    """A server with the configuration of deploy/, and intervals that are 30 times as short."""
    config = load(DEPLOY / "prometheus" / "prometheus.yml")
    [job] = config["scrape_configs"]
    job |= {"scrape_interval": "500ms", "static_configs": [{"targets": [exporter]}]}
    config["global"] = {"evaluation_interval": "500ms"}
    text = RECORDING_RULES.read_text(encoding="utf-8")
    for interval, short in ("interval: 15s", "interval: 500ms"), ("[1m]", "[2s]"):
        assert interval in text
        text = text.replace(interval, short)
    (tmp_path / RECORDING_RULES.name).write_text(text, encoding="utf-8")
    config["rule_files"] = [RECORDING_RULES.name, str(ALERTS)]
    server = Prometheus(config, tmp_path)
    yield server
    server.close()


@pytest.fixture
def limiter(own_server: Server) -> Iterator[Limiter]:
    limiter = Limiter(own_server.url, stops.LIMITS)
    yield limiter
    limiter.store.close()


@pytest.fixture
def worker_of(own_server: Server, start_worker: StartWorker) -> Any:
    def start() -> Worker:
        env = {"THROTTLE_URL": own_server.url}
        return start_worker("tests.apps.stops", own_server.url, concurrency=2, env=env)

    return start


def test_the_triggers_of_keda_follow_runnable_and_waiting_tasks(
    own_server: Server, limiter: Limiter, prometheus: Prometheus, worker_of: Any
) -> None:
    def wait_for(query: str, least: float, most: float, what: str) -> None:
        # A scrape that a busy machine delays has no values: each figure is waited for.
        wait_until(lambda: any(least <= each <= most for each in prometheus.query(query)), what, 60)

    wanted, keep_one = query_of("runnable"), query_of("waiting")
    waiting, runnable = "limit:celery_throttle_tasks_waiting:max", "celery_throttle_tasks_runnable"
    wait_for(wanted, 0, 0, "no worker for an idle fleet")
    wait_for(keep_one, 0, 0, "no worker to take tasks from lines")

    # The limit is used up.
    limiter["quota"].try_acquire(100)
    first = worker_of()
    with stops.app.connection_for_write(own_server.url) as connection:
        for number in range(1000):
            stops.hourly.apply_async((number, FOREVER), connection=connection)
    wait_for(waiting, 1000, 1000, "all tasks wait")
    wait_for(wanted, 0, 0, "no worker, as the limit is used up")
    wait_for(f"sum({runnable})", 0, 0, "no task that could start")
    wait_for(keep_one, 1, 1, "one worker to take tasks from their lines")

    # The limit has 100 units, and no worker is alive.
    first.kill()
    first.wait()
    limiter["quota"].reset()
    wait_for(runnable, 100, 100, "a hundred tasks that could start")
    wait_for(wanted, 100 / 8, 1 + 100 / 8, "a worker for each eight of them")

    # A worker is alive, and all of its processes are busy.
    worker_of()
    wait_for(runnable, 98, 98, "all processes are busy")
    wait_for(wanted, 1 + 98 / 8, 2 + 98 / 8, "more than the live workers")

    # The tasks have used up the limit.
    with own_server.client() as client:
        for number in range(1000):
            client.set(f"stops-end:{number}", 1, ex=300)
    wait_for(waiting, 900, 900, "a hundred tasks ran")
    wait_for(wanted, 0, 0, "no more workers")
    wait_for(keep_one, 1, 1, "still one worker")

    # No limit is paused, and no task is stranded; all other rules record something.
    empty = {
        "limit:celery_throttle_pause_end_timestamp_seconds:max",
        "queue_reason:celery_throttle_tasks_stranded:max",
    }
    for record in {one["record"] for one in rules(RECORDING_RULES)} - empty:
        wait_until(partial(prometheus.query, record), record, 60)
    assert not any(prometheus.query(record) for record in empty)

    # Without the server there is no result, so that KEDA keeps the workers.
    own_server.stop()
    wait_until(
        lambda: prometheus.query(wanted) == [] == prometheus.query(keep_one), "no result", 60
    )
    wait_for("fleet:celery_throttle_up:max", 0, 0, "the alert sees the lost server")
