"""A cluster of three masters, and a replica of the one that has our keys."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from celery_throttle.store.keys import DEFAULT_PREFIX
from tests.servers.server import Server, free_port, replicate, wait_until

SLOTS = 16_384


class Node(Server):
    """A server that can be in a cluster."""

    def __init__(self, command: Path, directory: Path) -> None:
        directory.mkdir()
        self.bus = free_port()
        options = ("--cluster-enabled", "yes", "--cluster-port", str(self.bus))
        quick = ("--cluster-node-timeout", "3000", "--repl-diskless-sync-delay", "0")
        super().__init__(command, directory, *options, *quick)
        self.id = self.do("MYID").decode()

    def do(self, *words: Any) -> Any:
        """A command of ``CLUSTER``; its reply as it comes."""
        connection: Any = redis.Connection(port=self.port)  # type: ignore[no-untyped-call]
        try:
            connection.send_command("CLUSTER", *words)
            return connection.read_response()
        finally:
            connection.disconnect()

    def lines(self) -> list[list[str]]:
        """What it knows of the nodes: id, address, flags, master, ..., slots."""
        return [line.split() for line in self.do("NODES").decode().splitlines()]

    def refused(self, code: str) -> int:
        """How many calls it has replied an error of this code."""
        with self.client() as client:
            counts: dict[str, Any] = client.info("errorstats")
        return int(counts.get(f"errorstat_{code}", {"count": 0})["count"])

    def is_ready(self) -> bool:
        return b"cluster_state:ok" in self.do("INFO") and len(self.lines()) == 4


class Cluster:
    """Its nodes: three masters, and the replica."""

    def __init__(self, command: Path, directory: Path) -> None:
        self.nodes = [Node(command, directory / f"node{index}") for index in range(4)]
        *masters, self.replica = self.nodes
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in masters)
        for index, node in enumerate(masters):
            node.do("ADDSLOTSRANGE", SLOTS * index // 3, SLOTS * (index + 1) // 3 - 1)
            node.do("SET-CONFIG-EPOCH", index + 1)
        for node in self.nodes[1:]:
            self.nodes[0].do("MEET", "127.0.0.1", node.port, node.bus)
        self.slot = int(self.replica.do("KEYSLOT", DEFAULT_PREFIX))
        self.owner = masters[self.slot * 3 // SLOTS]
        wait_until(lambda: self.owner.id in [line[0] for line in self.replica.lines()], "a meeting")
        self.replica.do("REPLICATE", self.owner.id)
        wait_until(lambda: all(node.is_ready() for node in self.nodes), "a cluster that is ready")
        replicate(self.owner, self.replica)

    @contextmanager
    def naming(self, kind: str) -> Iterator[None]:
        """Let redirections name a host, or no host, as all nodes share one or none has a name."""
        for node in self.nodes:
            node.configure("cluster-preferred-endpoint-type", kind)
        yield
        for node in self.nodes:
            node.configure("cluster-preferred-endpoint-type", "ip")

    def client(self) -> redis.Redis:
        """Of the node that has our keys."""
        return self.owner.client()

    def fail_over(self, *, by: signal.Signals = signal.SIGKILL) -> None:
        """The master of our keys dies, or stops, and its replica takes over.

        The replica has all that was written before.
        """
        replicate(self.owner, self.replica)
        if by == signal.SIGKILL:
            self.owner.stop()
        else:
            self.owner.signal(by)
        self.owner, self.replica = self.replica, self.owner
        alive = [node for node in self.nodes if node is not self.replica]
        wait_until(lambda: all(self._has_failed_over(node) for node in alive), "a failover")

    def _has_failed_over(self, node: Node) -> bool:
        (line,) = (line for line in node.lines() if line[0] == self.owner.id)
        return "master" in line[2] and b"cluster_state:ok" in node.do("INFO")

    def hand_over(self) -> None:
        """The replica becomes the master of our keys by plan, and the master its replica."""
        self.replica.do("FAILOVER")
        self.owner, self.replica = self.replica, self.owner
        masters = [node for node in self.nodes if node is not self.replica]
        wait_until(lambda: all(self._has_failed_over(node) for node in masters), "a failover")
        replicate(self.owner, self.replica)
        wait_until(lambda: all(node.is_ready() for node in self.nodes), "a cluster that is ready")

    def heal(self) -> None:
        """What was the master is back, and becomes the replica."""
        if self.replica.runs():
            self.replica.signal(signal.SIGCONT)
        else:
            self.replica.start()
        replicate(self.owner, self.replica)
        wait_until(lambda: all(node.is_ready() for node in self.nodes), "a cluster that is ready")

    def begin_move(self, source: Node, target: Node) -> None:
        """Our slot begins to move from a master to another one."""
        target.do("SETSLOT", self.slot, "IMPORTING", source.id)
        source.do("SETSLOT", self.slot, "MIGRATING", target.id)

    def move_keys(self, source: Node, target: Node, *only: str, together: int = 10_000) -> None:
        """All that is there or some of it, so many keys together."""
        with redis.Redis(port=source.port) as client:
            while keys := only or source.do("GETKEYSINSLOT", self.slot, together):
                client.migrate("127.0.0.1", target.port, keys, 0, 5_000)
                if only:
                    break

    def end_move(self, source: Node, target: Node) -> None:
        """The masters know of it, the new one first."""
        others = [node for node in self.nodes if node not in (target, source, self.replica)]
        for node in (target, source, *others):
            node.do("SETSLOT", self.slot, "NODE", target.id)

    @property
    def moves_at_once(self) -> bool:
        """Whether the servers have ``CLUSTER MIGRATESLOTS``."""
        with self.client() as client:
            version: str = client.info("server").get("valkey_version", "0")
        return int(version.partition(".")[0]) >= 9

    def move(self, *, atomic: bool) -> None:
        """Our slot moves to another master with all its keys, at once or key by key."""
        source = self.owner
        target = next(one for one in self.nodes if one not in (source, self.replica))
        if atomic:
            source.do("MIGRATESLOTS", "SLOTSRANGE", self.slot, self.slot, "NODE", target.id)
            masters = [node for node in self.nodes if node is not self.replica]
            wait_until(lambda: all(self._has(node, target) for node in masters), "a moved slot")
        else:
            self.begin_move(source, target)
            self.move_keys(source, target, together=1)
            self.end_move(source, target)
        self.owner = target

    def _has(self, node: Node, owner: Node) -> bool:
        """Whether a node knows that another one has our slot."""
        spans: list[list[Any]] = node.do("SLOTS")
        return any(
            first <= self.slot <= last and master[1] == owner.port
            for first, last, master, *_ in spans
        )

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()
