"""The command ``shards``, and all commands without the app."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery

from celery_throttle import Throttle
from celery_throttle.observe.nodes import (
    Node,
    NodeStatus,
    ShardStatus,
    find_warnings,
    slot_core_between,
)
from tests.cli.conftest import Shell
from tests.servers.cluster import Cluster
from tests.servers.server import free_port

LIMITS = {"shards-near": "5/h", "shards-lost": "5/h", "shards-home": "5/h"}


def shell_of(url: str, shards: Any, **options: Any) -> Shell:
    app = Celery("shards", broker=url, set_as_current=False)
    settings = {"prefix": "{shards}", "timeout": 5, **options}
    Throttle(app, LIMITS, url=url, shards=shards, **settings)
    return Shell(app, "celery")


@pytest.mark.parametrize("shards", [None, {}])
def test_an_app_without_the_setting_has_one_shard(redis_url: str, shards: Any) -> None:
    shell = shell_of(redis_url, shards)
    head, row, *_ = shell.run("shards", "--over", "0.1").splitlines()
    assert head.split() == [
        *("shard", "node", "slot", "limits", "waiting", "granted/s", "core", "outage")
    ]
    address = redis_url.partition("://")[2].partition("/")[0].replace("localhost", "127.0.0.1")
    name, node, *cells = row.split()
    assert (name, node.replace("localhost", "127.0.0.1")) == ("home", address)
    assert cells == ["-", "3", "0", "0", "-", "0", "s"]
    assert shell.json("shards", "--over", "0.1")["epoch"] == 0


def test_each_shard_is_listed_also_if_it_cannot_be_reached(redis_url: str) -> None:
    lost = f"redis://localhost:{free_port()}"
    shell = shell_of(
        redis_url,
        {
            "near": {"limits": ["shards-near"], "by_key": 2},
            "lost": {"limits": ["shards-lost"], "url": lost},
        },
    )
    assert shell.app.throttle["shards-near", 1].try_acquire()
    found = shell.json("shards", "--over", "0.1")
    by_name = {one["shard"]: one for one in found["shards"]}
    assert {name: one["limits"] for name, one in by_name.items()} == {
        "home": 1,
        "near/0": 1,
        "near/1": 1,
        "lost": None,
    }
    assert by_name["lost"]["server"] == lost
    (node,) = found["nodes"]
    assert (node["shards"], node["replicas"]) == (3, 0)
    assert node["memory"] > 0
    assert node["core"] >= 0
    assert found["epoch"] > 0
    assert "shard lost cannot be read: " in shell.run("shards", "--over", "0.1")


def test_what_is_granted_is_measured(redis_url: str) -> None:
    shell = shell_of(redis_url, {"near": {"limits": ["shards-near"]}})
    throttle, stop = shell.app.throttle, threading.Event()
    throttle["shards-near"].define("1000000/s burst 1000000")

    def acquire() -> None:
        while not stop.is_set():
            throttle["shards-near"].acquire()

    thread = threading.Thread(target=acquire)
    thread.start()
    found = shell.json("shards", "--over", "0.5")
    stop.set()
    thread.join()
    home, near = found["shards"]
    assert (home["granted"], near["granted"] > 0) == (0, True)


def test_without_the_app_commands_follow_the_map_of_the_home_shard(redis_url: str) -> None:
    shards = {"near": {"limits": ["shards-*"], "by_key": 2}}
    own = shell_of(redis_url, shards, prefix="{throttle}")
    own.app.throttle.register()
    shell = Shell(own.app, "celery-throttle")
    assert [one["name"] for one in shell.json("ls")["limits"]] == sorted(LIMITS)
    assert shell.json("pause", "shards-near", "--for", "1h")["seconds"] == 3600
    assert not own.app.throttle["shards-near", 1].try_acquire()
    found = shell.json("shards", "--over", "0.1")["shards"]
    assert [one["shard"] for one in found] == ["home", "near/0", "near/1"]


@pytest.mark.thorough
def test_the_nodes_of_a_cluster(cluster: Cluster) -> None:
    for node in cluster.nodes:
        node.configure("cluster-slot-stats-enabled", "yes")
    shell = shell_of(cluster.url, {"near": {"limits": ["shards-near"], "by_key": 6}})
    shell.app.throttle.register()
    found = shell.json("shards", "--over", "0.2")
    _, *near = found["shards"]
    masters = {node.port for node in cluster.nodes if node is not cluster.replica}
    assert {int(one["node"].rpartition(":")[2]) for one in near} == masters
    slots = [one["slot"] for one in near]
    assert [slot * 6 // 16_384 for slot in slots] == list(range(6))
    # Valkey does not count the time of scripts in that of slots.
    assert all(one["core"] is None or one["core"] > 0 for one in found["shards"])
    assert sorted(one["shards"] for one in found["nodes"]) == [2, 2, 3]
    by_address = {one["node"]: one["replicas"] for one in found["nodes"]}
    assert sorted(by_address.values()) == [0, 0, 1]
    assert len([one for one in found["warnings"] if "has no replica" in one]) == 2
    unused = shell_of(cluster.url, None).json("shards", "--over", "0.1")["nodes"]
    assert sorted(one["shards"] for one in unused) == [0, 0, 1]
    others = {one["shard"] for one in near if not one["node"].endswith(f":{cluster.owner.port}")}
    cluster.owner.stop()
    left = shell.json("shards", "--over", "0.1")
    assert len(others) == 4
    assert {one["shard"] for one in left["shards"] if not one["error"]} >= others


def test_the_time_of_a_slot_is_unknown_if_the_node_does_not_count_scripts() -> None:
    old = Node(10.0, 1.0, 1, 1, {5: 100, 7: 100})
    new = replace(old, at=12.0, slots={5: 500_100, 7: 100})
    assert slot_core_between(old, new, 5) == 0.25
    assert slot_core_between(old, new, 7) is None
    assert slot_core_between(old, new, 9) is None
    assert slot_core_between(old, new, None) is None


NODES = [NodeStatus("a:1", 2, 0.5, 1, 1), NodeStatus("b:1", 1, 0.01, 1, 1)]


def shard(name: str, node: str, granted: float, core: float | None = None) -> ShardStatus:
    return ShardStatus(name, "", node, 1, 1, 0, granted, core, 0.0)


def test_two_busy_shards_on_one_node_while_another_is_idle() -> None:
    by_units = [shard("one", "a:1", 50), shard("two", "a:1", 50), shard("three", "b:1", 1)]
    by_slots = [shard("one", "a:1", 1, 0.25), shard("two", "a:1", 99, 0.25)]
    text = "Node a:1 has the busy shards one, two, while b:1 is idle: move one of the shards there"
    for shards in (by_units, by_slots):
        (warning,) = find_warnings(shards, NODES)
        assert warning.startswith(text)
    assert not [*find_warnings([shard("one", "a:1", 99), shard("two", "a:1", 1)], NODES)]
    busy = [NODES[0], NODES[1]._replace(core=0.3)]
    assert not [*find_warnings(by_units, busy)]
    unused = [NODES[0], NodeStatus("c:1", 0, None, None, None)]
    assert "while c:1 is idle" in next(find_warnings(by_units, unused))


def test_a_node_that_uses_most_of_a_core() -> None:
    (warning,) = find_warnings([], [NodeStatus("a:1", 1, 0.82, 1, 1)])
    assert warning.startswith("Node a:1 uses 82% of a core, and can use one: divide its limits")


def test_a_node_without_a_replica() -> None:
    (warning,) = find_warnings([], [NodeStatus("a:1", 1, 0.1, 1, 0)])
    assert warning == "Node a:1 has no replica: if it is lost, so are its waiting tasks"
