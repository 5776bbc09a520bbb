"""A master and its replica, watched by Sentinels that are quick to see that one is gone."""

from __future__ import annotations

from pathlib import Path

import redis

from tests.servers.server import Server, answers, free_port, replicate, wait_until
from tests.tether import Tethered

NAME = "shop"

#: Milliseconds between two looks at servers and at each other: seconds are usual. A replica cannot
#: take over of which a Sentinel has heard nothing in the time of five pings; while the master is
#: down it asks once a second.
PERIODS = {"info": 100, "ask": 100, "publish": 100, "ping": 400}


class Sentinel:
    """One of them; its settings are a file of its own, which it writes to."""

    def __init__(self, command: Path, settings: Path, master: int, down_after: int = 500) -> None:
        self.port = free_port()
        watch = (
            # One that says the master is down is enough; a majority must let it take over.
            f"monitor {NAME} 127.0.0.1 {master} 1",
            f"down-after-milliseconds {NAME} {down_after}",
            f"failover-timeout {NAME} 1000",
        )
        lines = [f"port {self.port}", "bind 127.0.0.1", f"dir {settings.parent}"]
        settings.write_text("\n".join([*lines, *(f"sentinel {line}" for line in watch)]))
        self._running = Tethered([command, settings, "--sentinel"], settings.with_suffix(".log"))
        with redis.Redis(port=self.port) as client:
            self._running.wait_until(lambda: answers(client), seconds=60)
            for name, period in PERIODS.items():
                client.execute_command("SENTINEL", "DEBUG", f"{name}-period", period)

    def is_ready(self) -> bool:
        """Whether it knows the others, and a replica that could take over."""
        with redis.Redis(port=self.port) as client:
            others = client.sentinel_master(NAME)["num-other-sentinels"]
            replicas = client.sentinel_slaves(NAME)
        good = [one for one in replicas if not one["is_sdown"] and not one["is_disconnected"]]
        return others == 2 and [one["master-link-status"] for one in good] == ["ok"]

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
        # One after the other, so that they do not stand for the same election.
        self.sentinels = [
            Sentinel(command, directory / f"sentinel{index}.conf", self.master.port, down_after)
            for index, down_after in enumerate((500, 2_000, 3_500))
        ]
        hosts = [f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels]
        self.url = f"redis+sentinel://{','.join(hosts)}/{NAME}/0"
        self.broker_url = ";".join(f"sentinel://{host}/0" for host in hosts)
        wait_until(lambda: all(one.is_ready() for one in self.sentinels), "Sentinels at work")

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
        wait_until(lambda: all(one.is_ready() for one in self.sentinels), "a replica again")
        replicate(self.master, self.replica)

    def stop(self) -> None:
        for sentinel in self.sentinels:
            sentinel.stop()
        self.master.stop()
        self.replica.stop()


def _server(command: Path, directory: Path, *options: str) -> Server:
    directory.mkdir()
    return Server(command, directory, "--repl-diskless-sync-delay", "0", *options)
