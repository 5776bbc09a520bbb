"""How busy shards are, and the nodes that have them: measured twice, some time apart.

Nodes are asked by their own commands, ``INFO`` and ``CLUSTER``. A server that does not have one of
these, or does not permit it, leaves the figure open.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import hiredis

from celery_throttle.errors import StoreError
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.observe.observer import Observer
from celery_throttle.observe.status.fleet import read_fleet
from celery_throttle.observe.status.stored import read_all
from celery_throttle.operations.plan import Plan
from celery_throttle.store.client import Store
from celery_throttle.store.connection import Connection
from celery_throttle.store.script import pack_command

#: Shares of a core: above the first a node needs relief; above the second a shard is busy; below
#: the third a node is idle.
_FULL, _BUSY, _IDLE = 0.7, 0.2, 0.05


class Load(NamedTuple):
    """What a shard has, and has done so far."""

    at: int  #: the server's time in microseconds
    limits: int  #: the number of its limits
    waiting: int  #: the sum of the tasks that wait at each of them
    granted: float  #: the units granted
    outage_seconds: float  #: that workers spent in outage mode for the shard


@dataclass(frozen=True, slots=True)
class Node:
    """A server, or a node of a cluster, at a time."""

    at: float  #: a time in seconds
    core_seconds: float | None  #: the time of its main thread so far; None if unknown
    memory: int | None  #: the bytes in use; None if unknown
    replicas: int | None  #: the number of its replicas; None if unknown
    slots: Mapping[int, int]  #: the server time in microseconds so far, by hash slot


class NodeStatus(NamedTuple):
    """How busy a node is."""

    node: str  #: its address
    shards: int  #: the number of shards that it has
    core: float | None  #: the share of a core that its main thread used; None if unknown
    memory: int | None  #: the bytes in use; None if unknown
    replicas: int | None  #: the number of its replicas; None if unknown


class ShardStatus(NamedTuple):
    """How busy a shard is."""

    shard: str
    server: str  #: the URL of its server, without user and password
    node: str | None = None  #: the address of the node that has it; None if unknown
    slot: int | None = None  #: the hash slot of its keys; None unless the server is a cluster
    limits: int | None = None  #: the number of its limits
    waiting: int | None = None  #: the sum of the tasks that wait at each of them
    granted: float | None = None  #: the units granted per second
    #: The share of a core that its slot used; None if the node does not measure that.
    core: float | None = None
    #: The time that workers spent in outage mode for it, summed over workers.
    outage_seconds: float | None = None
    error: str = ""  #: why it cannot be read, and the numbers are missing; empty if it can


def read_load(observer: Observer) -> Plan[Load]:
    """Return what a shard has, and has done so far."""
    fleet = yield from read_fleet(observer)
    statuses = yield from read_all(observer)
    return Load(
        fleet.now,
        len(statuses),
        sum(status.waiting for status in statuses),
        sum(status.totals.granted for status in statuses),
        fleet.outage_seconds,
    )


class Nodes:
    """A connection to each node of some shards.

    ``stores``: those of the shards, each with its hash slot or None. They have been used, so they
    know the node that has the shard.
    """

    def __init__(self, stores: Mapping[str, tuple[Store, int | None]]) -> None:
        self._connections: dict[str, Connection] = {}
        self._slots: dict[str, list[int]] = {}
        self.of_shard: dict[str, str] = {}  #: the address of the node that has a shard
        for shard, (store, slot) in stores.items():
            with suppress(StoreError):
                self._add(shard, store.connection(), slot)

    def _add(self, shard: str, connection: Connection, slot: int | None) -> None:
        address = str(connection.address)
        self.of_shard[shard] = address
        if self._connections.setdefault(address, connection) is not connection:
            connection.close()
        self._slots.setdefault(address, []).extend([] if slot is None else [slot])

    def read(self) -> dict[str, Node]:
        """Return the nodes by their addresses."""
        return {address: self._read(address) for address in self._connections}

    def _read(self, address: str) -> Node:
        lines = _text(self._ask(address, "INFO") or "").splitlines()
        info = {name: value for name, _, value in (line.partition(":") for line in lines) if value}
        core = [info.get(f"used_cpu_{kind}_main_thread") for kind in ("sys", "user")]
        return Node(
            time.monotonic(),
            sum(map(float, filter(None, core))) if all(core) else None,
            int(info["used_memory"]) if "used_memory" in info else None,
            int(info["connected_slaves"]) if "connected_slaves" in info else None,
            dict(self._slot_times(address)),
        )

    def _slot_times(self, address: str) -> Iterator[tuple[int, int]]:
        for slot in dict.fromkeys(self._slots[address]):
            found = self._ask(address, "CLUSTER", "SLOT-STATS", "SLOTSRANGE", slot, slot)
            if found is None:
                return  # this node has no such command
            for _, flat in found:
                stats = dict(zip(map(_text, flat[::2]), flat[1::2], strict=True))
                if "cpu-usec" in stats:
                    yield slot, int(stats["cpu-usec"])

    def _ask(self, address: str, *words: Any) -> Any:
        """Return the reply of a node; None if it has no such command, or is lost."""
        connection = self._connections[address]
        try:
            connection.send(pack_command(*words))
            reply = connection.read()
        except OSError:
            connection.close()  # or a late reply would be read as that of the next command
            return None
        return None if isinstance(reply, hiredis.ReplyError) else reply

    def find_unused(self) -> list[str]:
        """Return the addresses of those masters of the cluster that have no shard."""
        used, masters = set(), {}
        for address in self._connections:
            used.add(self._ask(address, "CLUSTER", "MYID"))
            for _, _, (host, port, node_id, *_), *_ in self._ask(address, "CLUSTER", "SLOTS") or ():
                masters[node_id] = f"{_text(host)}:{port}"
        return sorted(address for node_id, address in masters.items() if node_id not in used)

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()


def nodes_between(
    before: Mapping[str, Node], after: Mapping[str, Node], shards: Sequence[ShardStatus]
) -> list[NodeStatus]:
    """Return how busy the nodes of some shards were."""
    counts = Counter(shard.node for shard in shards)
    return [
        NodeStatus(at, counts[at], _core_between(before[at], node), node.memory, node.replicas)
        for at, node in after.items()
    ]


def slot_core_between(before: Node, after: Node, slot: int | None) -> float | None:
    """Return the share of a core that a hash slot used; None if the node does not measure that.

    The shard was read in between, by scripts. If the slot has used no time, the node does not count
    that of scripts: Valkey 9.1 does not.
    """
    if slot is None or slot not in before.slots or slot not in after.slots:
        return None
    spent = (after.slots[slot] - before.slots[slot]) / MICROSECONDS
    return spent / (after.at - before.at) if spent > 0 else None


def _core_between(before: Node, after: Node) -> float | None:
    if before.core_seconds is None or after.core_seconds is None:
        return None
    return max(0.0, after.core_seconds - before.core_seconds) / (after.at - before.at)


def find_warnings(shards: Sequence[ShardStatus], nodes: Sequence[NodeStatus]) -> Iterator[str]:
    """Yield what should be changed of nodes, as sentences."""
    idle = [one.node for one in nodes if (not one.shards if one.core is None else one.core < _IDLE)]
    for node in nodes:
        busy = [
            one.shard for one in shards if one.node == node.node and _is_busy(one, node, shards)
        ]
        others = [other for other in idle if other != node.node]
        if len(busy) > 1 and others:
            yield (
                f"Node {node.node} has the busy shards {', '.join(busy)}, while {others[0]} is "
                "idle: move one of the shards there, by its hash slot"
            )
        if node.core is not None and node.core > _FULL:
            yield (
                f"Node {node.node} uses {node.core:.0%} of a core, and can use one: divide its "
                "limits among more shards, or move a shard to another node"
            )
        if node.replicas == 0:
            yield f"Node {node.node} has no replica: if it is lost, so are its waiting tasks"


def _is_busy(shard: ShardStatus, node: NodeStatus, shards: Sequence[ShardStatus]) -> bool:
    """Whether a shard is busy, by its slot, or else by its part of what the node has granted."""
    if shard.core is not None:
        return shard.core > _BUSY
    granted = sum(one.granted or 0.0 for one in shards if one.node == node.node)
    return bool(granted) and (node.core or 0.0) * (shard.granted or 0.0) / granted > _BUSY


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
