"""A cluster of three masters, and a replica of the one that has our keys, or of each."""

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

    def connections(self) -> set[str]:
        """The ids of the clients that are connected, without this one."""
        with self.client() as client:
            own = client.client_id()
            return {one["id"] for one in client.client_list("normal")} - {str(own)}

    def is_master(self) -> bool:
        """Whether it is one by its own account."""
        return any("myself,master" in line[2] for line in self.lines())

    def is_ready(self, nodes: int) -> bool:
        return b"cluster_state:ok" in self.do("INFO") and len(self.lines()) == nodes


class Cluster:
    """Its nodes: three masters, and the replicas.

    Args:
        command: the server.
        directory: of their data.
        each: whether each master has a replica, and not only that of our keys.
    """

    def __init__(self, command: Path, directory: Path, *, each: bool = False) -> None:
        count = 6 if each else 4
        self.nodes = [Node(command, directory / f"node{index}") for index in range(count)]
        masters, replicas = self.nodes[:3], self.nodes[3:]
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in masters)
        for index, node in enumerate(masters):
            node.do("ADDSLOTSRANGE", SLOTS * index // 3, SLOTS * (index + 1) // 3 - 1)
            node.do("SET-CONFIG-EPOCH", index + 1)
        for node in self.nodes[1:]:
            self.nodes[0].do("MEET", "127.0.0.1", node.port, node.bus)
        self.slot = self.slot_of(DEFAULT_PREFIX)
        self.owner = masters[self.slot * 3 // SLOTS]
        others = [node for node in masters if node is not self.owner]
        #: The replica of each master that has one, as long as no other node is in charge.
        self.replica_of = dict(zip((self.owner, *others), replicas, strict=False))
        self.replica = self.replica_of[self.owner]
        for master, replica in self.replica_of.items():
            wait_until(lambda: master.id in {line[0] for line in replica.lines()}, "a meeting")  # noqa: B023
            replica.do("REPLICATE", master.id)
        self._wait_until_ready()
        for master, replica in self.replica_of.items():
            replicate(master, replica)

    def _wait_until_ready(self) -> None:
        count = len(self.nodes)
        ready = lambda: all(node.is_ready(count) for node in self.nodes)  # noqa: E731
        wait_until(ready, "a cluster that is ready")

    def slot_of(self, key: str) -> int:
        return int(self.nodes[0].do("KEYSLOT", key))

    def owner_of(self, slot: int) -> Node:
        """The node that has a slot now; all nodes are reachable."""
        return next(node for node in self.nodes if node.is_master() and has_slot(node, slot, node))

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
        self.owner, self.replica = self.replica, self.owner
        self.lose(self.replica, self.owner, by)

    def lose(self, master: Node, replica: Node, by: signal.Signals = signal.SIGKILL) -> None:
        """A master dies, or stops, and its replica takes over; :meth:`bring_back` it later."""
        if by == signal.SIGKILL:
            master.stop()
        else:
            master.signal(by)
        alive = [node for node in self.nodes if node is not master]
        wait_until(lambda: all(_is_master(replica, by=node) for node in alive), "a failover")

    def hand_over(self) -> None:
        """The replica becomes the master of our keys by plan, and the master its replica."""
        self.replica.do("FAILOVER")
        self.owner, self.replica = self.replica, self.owner
        masters = [node for node in self.nodes if node is not self.replica]
        wait_until(lambda: all(_is_master(self.owner, by=node) for node in masters), "a failover")
        replicate(self.owner, self.replica)
        self._wait_until_ready()

    def heal(self) -> None:
        """What was the master is back, and becomes the replica."""
        self.bring_back(self.replica, self.owner)

    def bring_back(self, node: Node, master: Node) -> None:
        """A node that was lost is back, as the replica of the one that is the master by now."""
        if node.runs():
            node.signal(signal.SIGCONT)
        else:
            node.start()
        replicate(master, node)
        self._wait_until_ready()

    def begin_move(self, source: Node, target: Node, slot: int | None = None) -> None:
        """A slot, ours unless given, begins to move from a master to another one."""
        slot = self.slot if slot is None else slot
        target.do("SETSLOT", slot, "IMPORTING", source.id)
        source.do("SETSLOT", slot, "MIGRATING", target.id)

    def move_keys(
        self,
        source: Node,
        target: Node,
        *only: str,
        together: int = 10_000,
        slot: int | None = None,
    ) -> None:
        """All that is there or some of it, so many keys together."""
        slot = self.slot if slot is None else slot
        with redis.Redis(port=source.port) as client:
            while keys := only or source.do("GETKEYSINSLOT", slot, together):
                client.migrate("127.0.0.1", target.port, keys, 0, 5_000)
                if only:
                    break

    def end_move(self, source: Node, target: Node, slot: int | None = None) -> None:
        """The masters know of it, the new one first."""
        slot = self.slot if slot is None else slot
        others = [node for node in self.masters() if node not in (target, source)]
        for node in (target, source, *others):
            node.do("SETSLOT", slot, "NODE", target.id)

    def masters(self) -> list[Node]:
        return [node for node in self.nodes if node.is_master()]

    @property
    def moves_at_once(self) -> bool:
        """Whether the servers have ``CLUSTER MIGRATESLOTS``."""
        with self.client() as client:
            version: str = client.info("server").get("valkey_version", "0")
        return int(version.partition(".")[0]) >= 9

    def move(self, *, atomic: bool) -> None:
        """Our slot moves to another master with all its keys, at once or key by key."""
        target = next(one for one in self.nodes if one not in (self.owner, self.replica))
        self.move_slot(self.slot, self.owner, target, atomic=atomic)
        self.owner = target

    def move_slot(self, slot: int, source: Node, target: Node, *, atomic: bool) -> None:
        """Any slot moves, as ours does by :meth:`move`."""
        if atomic:
            source.do("MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.id)
            wait_until(
                lambda: all(has_slot(node, slot, target) for node in self.masters()),
                "a moved slot",
            )
        else:
            self.begin_move(source, target, slot)
            self.move_keys(source, target, together=1, slot=slot)
            self.end_move(source, target, slot)

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


def _is_master(node: Node, *, by: Node) -> bool:
    """Whether a node is a master, as another one knows it, which can serve all slots."""
    (line,) = (line for line in by.lines() if line[0] == node.id)
    return "master" in line[2] and b"cluster_state:ok" in by.do("INFO")


def has_slot(node: Node, slot: int, owner: Node) -> bool:
    """Whether a node knows that another one has a slot."""
    spans: list[list[Any]] = node.do("SLOTS")
    return any(
        first <= slot <= last and master[1] == owner.port for first, last, master, *_ in spans
    )
