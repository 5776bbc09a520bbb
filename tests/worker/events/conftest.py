"""Two workers with events on, and the monitors that watch them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from celery_throttle import Throttle
from tests.apps import monitored
from tests.servers.server import assert_nothing_left_behind
from tests.worker.events.monitors import Exporter, Flower, is_installed
from tests.workers import QUICK, Worker


@pytest.fixture(scope="module")
def broker_url(server_url: str, pool: str) -> Iterator[str]:
    """An empty database for each pool, and so workers and monitors of its own."""
    del pool
    with redis.Redis.from_url(server_url) as client:
        client.flushall()
        yield server_url
        assert_nothing_left_behind(client)


@pytest.fixture(scope="module")
def throttle(broker_url: str) -> Throttle:
    """The app's limits in this process."""
    monitored.app.conf.update(broker_url=broker_url, result_backend=broker_url)
    monitored.throttle.register()
    return monitored.throttle


@pytest.fixture(scope="module")
def flower(broker_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    if not is_installed("flower"):
        pytest.skip("Flower is not installed; make .venv/monitors/.stamp installs it")
    monitor = Flower(broker_url, tmp_path_factory.mktemp("flower"))
    yield monitor
    print(f"--- Flower\n{monitor.log()[-4000:]}")
    monitor.end()


@pytest.fixture(scope="module")
def exporter(
    broker_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Exporter | None]:
    """None where it cannot be installed: it does not support each version of Python."""
    if not is_installed("prometheus_exporter_celery"):
        yield None
        return
    monitor = Exporter(broker_url, tmp_path_factory.mktemp("exporter"))
    yield monitor
    print(f"--- celery-exporter\n{monitor.log()[-4000:]}")
    monitor.end()


@pytest.fixture(scope="module")
def workers(broker_url: str, pool: str, throttle: Throttle) -> Iterator[list[Worker]]:
    """Two workers with events on."""
    del throttle  # its limits are registered first
    app, options = "tests.apps.monitored", (*QUICK, "-E")
    workers = [Worker(app, broker_url, pool=pool, options=options) for _ in range(2)]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.wait_until_ready()
        yield workers
    finally:
        for worker in workers:
            print(f"--- {worker.hostname}\n{worker.log()[-4000:]}")
            worker.close()
