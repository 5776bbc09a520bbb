"""A replica takes over at once, behind the same address, without the last writes of its master."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_throttle import Limiter
from celery_throttle.store.keys import Keys
from tests.faults.bench import Bench
from tests.faults.proxy import Proxy
from tests.servers.server import Server, replicate, valkey_command

pytestmark = pytest.mark.workers


@pytest.fixture
def replica(own_server: Server, tmp_path: Path) -> Iterator[Server]:
    directory = tmp_path / "replica"
    directory.mkdir()
    follow = ("--replicaof", f"127.0.0.1 {own_server.port}", "--repl-diskless-sync-delay", "0")
    server = Server(valkey_command(), directory, *follow)
    yield server
    server.check_keys()
    server.stop()


@pytest.mark.thorough
def test_reports_that_a_failover_has_lost_are_made_again(
    redis_url: str, own_server: Server, replica: Server, proxy: Proxy
) -> None:
    """No worker sees an outage: the next connection leads to the replica."""
    # Of half of this, slots would be free by themselves.
    with Bench(redis_url, proxy.url, conf={"throttle_lease": 120}) as bench:
        before, after = Limiter(own_server.url), Limiter(replica.url)
        Limiter(own_server.url, {"api": "100/s"})["api"].pause(None)
        bench.start_workers(1)
        bench.send("late_held", [0])
        bench.send("held", [1])
        bench.until(lambda: before["api"].status().waiting == 1, "it waits in its line")
        before["api"].resume()
        bench.until_started("late_held", 1)
        bench.until_started("held", 1)
        replicate(own_server, replica)
        with replica.client() as client:
            client.replicaof("NO", "ONE")  # it receives nothing more
            assert client.exists(Keys().workers, "{throttle}:entries:slots") == 2
        bench.let_go(2)
        with own_server.client() as client:
            bench.until(
                lambda: not client.exists(Keys().workers, "{throttle}:entries:slots"),
                "the master knows the ends of both",
            )
        proxy.switch(replica.port)
        with replica.client() as client:
            bench.until(lambda: not client.exists(Keys().workers), "no claim is left")
            bench.until(lambda: not client.exists("{throttle}:entries:slots"), "no slot is left")
        assert after["api"].status().waiting == 0
        assert bench.rows("modes") == [], "no outage"
        assert len(bench.rows("starts")) == 2
