"""A master and its replica, watched by Sentinels that are quick to see that one is gone."""

from __future__ import annotations

from pathlib import Path

import redis

from tests.servers import Server, answers, free_port, replicate, wait_until
from tests.tether import Tethered

NAME = "shop"

#: How often Sentinels look at servers and at each other: seconds are usual.
PERIODS = ("info", "ping", "ask", "publish")
PERIOD_MS = 100


class Sentinel:
    """One of them; its settings are a file of its own, which it writes to."""

    def __init__(self, command: Path, settings: Path, master: int, *options: str) -> None:
        self.port = free_port()
        watch = (
            f"monitor {NAME} 127.0.0.1 {master} 2",
            f"down-after-milliseconds {NAME} 500",
            f"failover-timeout {NAME} 1000",
        )
        lines = [f"port {self.port}", "bind 127.0.0.1", f"dir {settings.parent}"]
        settings.write_text("\n".join([*lines, *(f"sentinel {line}" for line in watch), *options]))
        self._running = Tethered([command, settings, "--sentinel"], settings.with_suffix(".log"))
        with redis.Redis(port=self.port) as client:
            self._running.wait_until(lambda: answers(client), seconds=20)
            for period in PERIODS:
                client.execute_command("SENTINEL", "DEBUG", f"{period}-period", PERIOD_MS)

    def knows_all(self) -> bool:
        with redis.Redis(port=self.port) as client:
            state = client.sentinel_master(NAME)
        return bool(state["num-other-sentinels"] == 2 and state["num-slaves"] == 1)

    def master(self) -> int:
        """The port of it."""
        with redis.Redis(port=self.port) as client:
            return int(client.sentinel_get_master_addr_by_name(NAME)[1])

    def stop(self) -> None:
        self._running.end()


class Watched:
    """Two servers and three Sentinels."""

    def __init__(self, command: Path, directory: Path) -> None:
        self.master = _server(command, directory / "first")
        follow = ("--replicaof", f"127.0.0.1 {self.master.port}")
        self.replica = _server(command, directory / "second", *follow)
        replicate(self.master, self.replica)
        self.sentinels = [
            Sentinel(command, directory / f"sentinel{index}.conf", self.master.port)
            for index in range(3)
        ]
        hosts = [f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels]
        self.url = f"redis+sentinel://{','.join(hosts)}/{NAME}/0"
        self.broker_url = ";".join(f"sentinel://{host}/0" for host in hosts)
        wait_until(lambda: all(one.knows_all() for one in self.sentinels), "Sentinels at work")

    def client(self) -> redis.Redis:
        """Of the master."""
        return self.master.client()

    def fail_over(self) -> None:
        """The master dies, and with all that it has written its replica takes over."""
        replicate(self.master, self.replica)
        self.master.stop()
        self.wait_for_failover()

    def wait_for_failover(self) -> None:
        self.master, self.replica = self.replica, self.master
        moved = self.master.port
        wait_until(lambda: all(one.master() == moved for one in self.sentinels), "a failover")

    def heal(self) -> None:
        """What was the master is back, and becomes the replica."""
        if not self.replica.runs():
            self.replica.start()
        wait_until(lambda: all(one.knows_all() for one in self.sentinels), "a replica again")
        replicate(self.master, self.replica)

    def stop(self) -> None:
        for sentinel in self.sentinels:
            sentinel.stop()
        self.master.stop()
        self.replica.stop()


def _server(command: Path, directory: Path, *options: str) -> Server:
    directory.mkdir()
    return Server(command, directory, "--repl-diskless-sync-delay", "0", *options)
