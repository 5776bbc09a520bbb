"""An app whose limits are on two servers."""

from __future__ import annotations

import json
import os
import runpy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import redis

from tests.servers.server import Server, wait_until
from tests.workers import StartWorker, Worker

#: Seconds until the tasks of a test have run.
SECONDS = 60


class ShardedApp:
    """The app of ``tests/apps/sharded_bulk.py`` in this process, its servers, and its worker."""

    def __init__(self, broker: str, home: Server, erp: Server, start_worker: StartWorker) -> None:
        self.home, self.erp = home, erp
        shards = {
            "erp": {"limits": ["erp"], "url": erp.url},
            "tenants": {"limits": ["tenant"], "by_key": 4},
        }
        self.env = {
            "CELERY_BROKER_URL": broker,
            "HOME_URL": home.url,
            "SHARDS": json.dumps(shards),
        }
        self.start_worker: Callable[[], Worker] = partial(
            start_worker, "tests.apps.sharded_bulk", broker, concurrency=1, env=self.env
        )
        self.client: Any = redis.Redis.from_url(broker)

        self.reload()

    def reload(self) -> ShardedApp:
        """Make the app anew, as another process of the same code has it."""
        with patch.dict(os.environ, self.env):
            loaded = runpy.run_module("tests.apps.sharded_bulk")
        self.app: Any = loaded["app"]
        self.throttle: Any = loaded["throttle"]
        return self

    def task(self, name: str) -> Any:
        return self.app.tasks[name]

    def at_broker(self) -> int:
        return int(self.client.llen("celery"))

    def runs(self, name: str) -> list[int]:
        """Return the numbers of the tasks of a name that have run, in the order of their starts."""
        return [int(number) for number in self.client.lrange(f"bulk:{name}", 0, -1)]

    def has_run(self, name: str, count: int) -> None:
        wait_until(lambda: len(self.runs(name)) >= count, f"{count} starts of {name}", SECONDS)

    def close(self) -> None:
        for part in self.throttle.app_parts:
            part.store.close()
        self.app.close()
        self.client.flushdb()
        self.client.close()


@pytest.fixture
def sharded(
    redis_url: str,
    own_server: Server,
    erp_server: Server,
    start_worker: StartWorker,
) -> Iterator[ShardedApp]:
    sharded = ShardedApp(redis_url, own_server, erp_server, start_worker)
    yield sharded
    sharded.close()
