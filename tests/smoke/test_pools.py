"""Every pool, with every version of Celery. Workers are processes, even with a Docker engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from tests.servers.server import Server, valkey_command, wait_until
from tests.smoke.fleet import SECONDS
from tests.smoke.local_engine import ROOT
from tests.workers import Worker

#: Pool -> its size.
SIZES = {"prefork": 2, "solo": 1, "threads": 4, "gevent": 10, "eventlet": 10}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(valkey_command(), tmp_path_factory.mktemp("valkey"))
    yield server
    server.stop()


@pytest.mark.parametrize("pool", SIZES)
def test_tasks_with_limits_start_in_all_processes_of_a_pool(
    server: Server, default_worker_celery_version: str, pool: str
) -> None:
    size = SIZES[pool]
    worker = Worker(
        "tests.apps.pools",
        server.url,
        pool=pool,
        concurrency=size,
        env={"THROTTLE_URL": server.url},
        python=ROOT / ".venv" / f"celery-{default_worker_celery_version}" / "bin" / "python",
    )
    with server.client() as client:
        client.flushall()
    with server.client() as client, worker:

        def begun() -> list[int]:
            rows: Any = client.lrange("pools-starts", 0, -1)
            return [int(row.split()[0]) for row in rows]

        def until_begun(count: int) -> None:
            what = f"{count} starts; the log:\n{worker.log()}"
            wait_until(lambda: len(begun()) >= count, what, SECONDS)

        with Celery(broker=server.url, set_as_current=False) as app:
            for number in range(2 * size):
                app.send_task("tests.apps.pools.stay_paced", (number, 0), queue="pools")
        until_begun(size)
        client.set("pools-end", 1)
        until_begun(2 * size)
        assert Counter(begun()) == Counter(range(2 * size))
