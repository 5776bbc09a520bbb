"""A worker with two shards: each decides by its own server, and an outage is that of one shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from celery_throttle import Limiter
from celery_throttle.store.keys import DEFAULT_PREFIX
from tests.servers.server import Server, valkey_command, wait_until
from tests.workers import StartWorker, Worker

pytestmark = pytest.mark.workers

TASKS = 5


class Bench:
    """One worker, its broker, and the servers of its shards."""

    def __init__(self, broker: str, servers: dict[str, Server], start_worker: StartWorker) -> None:
        self.servers = servers
        self._celery = Celery("sharded", broker=broker, set_as_current=False)
        self._broker: Any = redis.Redis.from_url(broker)
        env = {"HOME_URL": servers["mail"].url, "ERP_URL": servers["erp"].url}
        self.worker: Worker = start_worker("tests.apps.sharded", broker, env=env)

    def send(self, task: str, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._celery.send_task(f"tests.apps.sharded.{task}", (number,))

    def records(self, name: str) -> list[str]:
        return sorted(row.decode() for row in self._broker.lrange(f"sharded:{name}", 0, -1))

    def has_run(self, task: str, count: int) -> None:
        wait_until(lambda: len(self.records(task)) >= count, f"{count} starts of {task}")

    def waiting(self, limit: str) -> int:
        """Return the number of tasks that wait on the server of a limit."""
        with self.servers[limit].client() as client:
            lines = client.scan_iter(f"{DEFAULT_PREFIX}:messages:*")
            return sum(int(client.hlen(line)) for line in lines)

    def define(self, limit: str, definition: str) -> None:
        Limiter(self.servers[limit].url, {limit: "1/h"})[limit].define(definition)

    def modes(self) -> dict[str, str]:
        """Return the mode of each shard, as the worker shows it."""
        replies: dict[str, Any] = {}

        def replied() -> bool:
            inspect: Any = self._celery.control.inspect([self.worker.hostname], timeout=5, limit=1)
            replies.update(inspect.stats() or {})
            return bool(replies)

        wait_until(replied, "a reply of the worker")
        stats = replies[self.worker.hostname]["throttle"]
        return {"mail": stats["mode"], "erp": stats["shards"]["erp"]["mode"]}

    def close(self) -> None:
        names = ("mail", "erp", "plain", "modes")
        self._broker.delete(*(f"sharded:{name}" for name in names))
        self._broker.close()
        self._celery.close()


@pytest.fixture
def erp_server(tmp_path: Path) -> Iterator[Server]:
    directory = tmp_path / "erp"
    directory.mkdir()
    server = Server(valkey_command(), directory)
    yield server
    server.check_keys()
    server.stop()


@pytest.fixture
def bench(
    redis_url: str, own_server: Server, erp_server: Server, start_worker: StartWorker
) -> Iterator[Bench]:
    bench = Bench(redis_url, {"mail": own_server, "erp": erp_server}, start_worker)
    yield bench
    bench.close()


def test_each_shard_decides_by_its_own_server(bench: Bench) -> None:
    bench.send("mail", range(TASKS))
    bench.send("erp", range(TASKS))
    bench.send("plain", range(TASKS))
    bench.has_run("plain", TASKS)
    wait_until(lambda: bench.waiting("mail") == TASKS - 3, "the rest of mail in its line")
    wait_until(lambda: bench.waiting("erp") == TASKS - 2, "the rest of erp in its line")
    bench.has_run("mail", 3)
    bench.has_run("erp", 2)
    bench.define("erp", "1000/s burst 1000")
    bench.has_run("erp", TASKS)
    assert bench.records("erp") == [str(number) for number in range(TASKS)]
    assert (len(bench.records("mail")), bench.waiting("mail")) == (3, TASKS - 3)
    bench.define("mail", "1000/s burst 1000")
    bench.has_run("mail", TASKS)
    assert bench.records("mail") == [str(number) for number in range(TASKS)]


@pytest.mark.parametrize(("lost", "living"), [("erp", "mail"), ("mail", "erp")])
def test_only_the_shard_of_a_lost_server_is_in_outage_mode(
    bench: Bench, lost: str, living: str
) -> None:
    lost_server = bench.servers[lost]
    for limit in ("mail", "erp"):
        bench.define(limit, "1000/s burst 1000 outage closed")
    lost_server.stop()
    wait_until(lambda: bench.modes()[lost] == "outage", "outage mode")
    bench.send(lost, range(TASKS))
    bench.send(living, range(TASKS))
    bench.has_run(living, TASKS)
    assert bench.modes() == {lost: "outage", living: "normal"}
    assert bench.records("modes") == [f"outage {lost_server.url} {DEFAULT_PREFIX}"]
    assert bench.records(lost) == []
    lost_server.start()
    wait_until(lambda: bench.modes()[lost] == "normal", "the end of the outage")
    bench.define(lost, "1000/s burst 1000")
    bench.has_run(lost, TASKS)
    assert bench.records(lost) == [str(number) for number in range(TASKS)]
    assert bench.records(living) == [str(number) for number in range(TASKS)]
