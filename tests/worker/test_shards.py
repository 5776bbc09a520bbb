"""A worker with two shards: each decides by its own server, and an outage is that of one shard."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import redis
from celery import Celery

from celery_throttle import Limiter, Throttle
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.shards import OtherShardError, Shard, ShardEntry
from celery_throttle.operations.shards import (
    ShardIdentity,
)
from celery_throttle.store.keys import DEFAULT_PREFIX, shard_prefix
from celery_throttle.worker.tuning import BOOKING_HORIZON_SECONDS
from tests.servers.server import Server, wait_until
from tests.shards import HOME_KEYS, home_store_of, keys_of, shard_limiter, stores_of
from tests.workers import StartWorker, Worker

pytestmark = pytest.mark.workers

TASKS = 5
LIMITS = {
    "mail": "3/h burst 3 outage closed",
    "erp": "2/h burst 2 outage closed",
    "tenant": "1/h burst 1",
}
PREFIXES = {"mail": DEFAULT_PREFIX, "erp": keys_of("erp").prefix}


class Bench:
    """One worker, its broker, and the servers of its shards."""

    def __init__(
        self,
        broker: str,
        servers: dict[str, Server],
        start_worker: StartWorker,
        lease: float = 2.0,
    ) -> None:
        self.servers = servers
        self._lease = lease
        self._celery = Celery("sharded", broker=broker, set_as_current=False)
        self._broker: Any = redis.Redis.from_url(broker)
        self._start_worker = start_worker
        self._url = broker
        self.worker: Worker

    def start(
        self,
        shards: Mapping[str, Any],
        limits: Mapping[str, str] = LIMITS,
        rules: str = "",
        stall: float = 0.0,
        *,
        look_up: bool = False,
    ) -> Worker:
        """Start a worker with these settings of shards, and a rules file; see its module."""
        env = {
            "HOME_URL": self.servers["mail"].url,
            "SHARDS": json.dumps(shards),
            "LIMITS": json.dumps(limits),
            "LEASE": str(self._lease),
            "RULES": rules,
            "STALL": str(stall or ""),
            "LOOK_UP": "1" * look_up,
        }
        self.worker = self._start_worker("tests.apps.sharded", self._url, env=env)
        return self.worker

    @property
    def erp_shard(self) -> dict[str, Any]:
        """The settings with the limit "erp" on its own server."""
        return {"erp": {"limits": ["erp"], "url": self.servers["erp"].url}}

    def send(self, task: str, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._celery.send_task(f"tests.apps.sharded.{task}", (number,))

    def put_limits(self, limits: Mapping[int, str]) -> None:
        """Write what the function of the app returns for tenants."""
        self._broker.hset("sharded:table", mapping={str(key): one for key, one in limits.items()})

    def records(self, name: str) -> list[str]:
        return sorted(row.decode() for row in self._broker.lrange(f"sharded:{name}", 0, -1))

    def times(self, task: str) -> list[float]:
        """Return when the tasks started, in seconds."""
        return [float(time) for time in self._broker.lrange(f"sharded:{task}:times", 0, -1)]

    def has_run(self, task: str, count: int) -> None:
        wait_until(lambda: len(self.records(task)) >= count, f"{count} starts of {task}")

    def waiting(self, limit: str) -> int:
        """Return the number of tasks that wait on the server of a limit."""
        with self.servers[limit].client() as client:
            lines = client.scan_iter(f"{PREFIXES[limit]}:messages:*")
            return sum(int(client.hlen(line)) for line in lines)

    def has_acknowledged_all(self) -> bool:
        """Return whether the broker waits for the acknowledgement of no message."""
        return not self._broker.exists("unacked")

    def define(self, limit: str, definition: str) -> None:
        with self._limiter(limit) as limiter:
            limiter[limit].define(definition)

    @contextmanager
    def _limiter(self, limit: str) -> Iterator[Limiter]:
        limiter = Limiter(self.servers[limit].url, {limit: "1/h"}, prefix=PREFIXES[limit])
        yield limiter
        limiter.store.close()

    def pause(self, limit: str) -> None:
        with self._limiter(limit) as limiter:
            limiter[limit].pause(3600)

    def resume(self, limit: str) -> None:
        with self._limiter(limit) as limiter:
            limiter[limit].resume()

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

    def throttle(self) -> Throttle:
        """Return the limits of an app of another process, with the settings of the worker."""
        url = self.servers["mail"].url
        return Throttle(self._celery, LIMITS, url=url, shards=self.erp_shard)

    def close_throttle(self, throttle: Throttle) -> None:
        for part in throttle.app_parts:
            part.store.close()

    def close(self) -> None:
        names = ("mail", "erp", "both", "tenant", "plain", "modes", "begun", "inside", "table")
        self._broker.delete(*(f"sharded:{name}" for name in names), "sharded:mail:times")
        self._broker.close()
        self._celery.close()


@pytest.fixture
def bench(
    redis_url: str, own_server: Server, erp_server: Server, start_worker: StartWorker
) -> Iterator[Bench]:
    bench = Bench(redis_url, {"mail": own_server, "erp": erp_server}, start_worker)
    yield bench
    bench.close()


def test_each_shard_decides_by_its_own_server(bench: Bench) -> None:
    bench.start(bench.erp_shard)
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


@pytest.mark.thorough
@pytest.mark.parametrize(("lost", "living"), [("erp", "mail"), ("mail", "erp")])
def test_only_the_shard_of_a_lost_server_is_in_outage_mode(
    bench: Bench, lost: str, living: str
) -> None:
    bench.start(bench.erp_shard)
    lost_server = bench.servers[lost]
    for limit in ("mail", "erp"):
        bench.define(limit, "1000/s burst 1000 outage closed")
    lost_server.stop()
    wait_until(lambda: bench.modes()[lost] == "outage", "outage mode")
    bench.send(lost, range(TASKS))
    bench.send(living, range(TASKS))
    bench.has_run(living, TASKS)
    assert bench.modes() == {lost: "outage", living: "normal"}
    assert bench.records("modes") == [f"outage {lost_server.url} {PREFIXES[lost]}"]
    assert bench.records(lost) == []
    lost_server.start()
    wait_until(lambda: bench.modes()[lost] == "normal", "the end of the outage")
    bench.define(lost, "1000/s burst 1000")
    bench.has_run(lost, TASKS)
    assert bench.records(lost) == [str(number) for number in range(TASKS)]
    assert bench.records(living) == [str(number) for number in range(TASKS)]


@pytest.mark.thorough
def test_a_call_within_a_task_of_another_shard_waits_in_place(bench: Bench) -> None:
    """No run could begin with units of both shards, so the task does not step out."""
    bench.start(bench.erp_shard, {**LIMITS, "mail": "1000/s burst 1000", "erp": "5/s burst 1"})
    bench.send("inside", range(TASKS))
    bench.has_run("inside", TASKS)
    assert bench.records("inside") == [str(number) for number in range(TASKS)]
    assert bench.records("begun") == bench.records("inside")


@pytest.mark.thorough
@pytest.mark.parametrize("ref", [None, "erp"])
def test_drain_moves_the_tasks_of_all_shards(bench: Bench, ref: str | None) -> None:
    worker = bench.start(bench.erp_shard)
    bench.send("mail", range(TASKS))
    bench.send("erp", range(TASKS))
    wait_until(lambda: bench.waiting("mail") == TASKS - 3, "the rest of mail in its line")
    wait_until(lambda: bench.waiting("erp") == TASKS - 2, "the rest of erp in its line")
    wait_until(bench.has_acknowledged_all, "no message that the broker would deliver again")
    worker.terminate()
    worker.wait()
    throttle = bench.throttle()
    counted = throttle.count_waiting() if ref is None else throttle[ref].count_waiting()
    assert counted.waiting == (5 if ref is None else 3)
    assert counted.queues == {"celery": counted.waiting}
    steps: list[tuple[int, int]] = []

    def note(*step: int) -> None:
        steps.append((step[0], step[1]))

    if ref is None:
        removal = throttle.drain_all(progress=note)
    else:
        removal = throttle[ref].drain(progress=note)
    assert (removal.removed, removal.failed) == (counted.waiting, 0)
    assert steps[-1] == (counted.waiting, counted.waiting)
    assert throttle.purge() == 5  # those at the broker, and those in lines
    assert (bench.waiting("mail"), bench.waiting("erp")) == (0, 0)
    bench.close_throttle(throttle)


@pytest.mark.thorough
def test_a_rules_file_is_divided_among_the_shards(bench: Bench, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[limits]\nmail = "1/h burst 1"\nerp = "4/h burst 4"\n')
    bench.start(bench.erp_shard, rules=str(rules))
    for limit in ("mail", "erp"):
        bench.send(limit, range(TASKS))
    bench.has_run("mail", 1)
    bench.has_run("erp", 4)
    wait_until(lambda: bench.waiting("mail") == TASKS - 1, "the rest of mail in its line")
    wait_until(lambda: bench.waiting("erp") == TASKS - 4, "the rest of erp in its line")
    assert (len(bench.records("mail")), len(bench.records("erp"))) == (1, 4)
    new = tmp_path / "new.toml"
    new.write_text('[limits]\nmail = "1/h burst 1"\nerp = "1000/s burst 1000"\n')
    new.rename(rules)
    bench.has_run("erp", TASKS)
    assert (len(bench.records("mail")), bench.waiting("mail")) == (1, TASKS - 1)


def test_a_shard_that_lost_its_data_gets_the_rules_again(bench: Bench, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[limits]\nerp = "4/h burst 4"\n')
    bench.start(bench.erp_shard, rules=str(rules))
    bench.send("erp", range(1))
    bench.has_run("erp", 1)
    with bench.servers["erp"].client() as client:
        client.flushall()
    bench.send("erp", range(TASKS))
    bench.has_run("erp", 5)
    wait_until(lambda: bench.waiting("erp") == 1, "the last one in its line")
    assert len(bench.records("erp")) == 5


@pytest.mark.thorough
def test_a_task_with_limits_of_two_shards_fails(bench: Bench) -> None:
    worker = bench.start(bench.erp_shard)
    bench.send("both", range(1))
    bench.send("erp", range(1))
    bench.send("plain", range(1))
    bench.has_run("plain", 1)
    bench.has_run("erp", 1)
    wait_until(
        lambda: (
            "limits of two shards: 'mail' in shard 'home' and 'erp' in shard 'erp'" in worker.log()
        ),
        "the error of the task",
    )
    assert bench.records("both") == []


@pytest.mark.thorough
@pytest.mark.parametrize("limit", ["mail", "erp"])
def test_the_shard_where_other_processes_have_put_a_limit_decides(bench: Bench, limit: str) -> None:
    """The settings of the worker say the other one."""
    home_url, erp_url = bench.servers["mail"].url, bench.servers["erp"].url
    identity = ShardIdentity("erp", server=erp_url)
    if limit == "mail":
        other = shard_limiter(erp_url, "erp", LIMITS, home_url=home_url, identity=identity)
    else:
        other = shard_limiter(home_url, "home", LIMITS)
    assert other[limit].try_acquire()
    bench.start(bench.erp_shard)
    bench.send(limit, range(TASKS))
    burst = {"mail": 3, "erp": 2}[limit]
    bench.has_run(limit, burst - 1)
    wait_until(lambda: other[limit].status().waiting == TASKS - burst + 1, "the rest in its line")
    assert len(bench.records(limit)) == burst - 1
    other[limit].define("1000/s burst 1000")
    bench.has_run(limit, TASKS)
    other.store.close()
    home_store_of(other).close()


@pytest.mark.thorough
def test_a_limit_in_an_unknown_shard_waits_for_another_worker(bench: Bench) -> None:
    """A worker of before a deployment fails no task that the others run."""
    url = bench.servers["mail"].url
    other = shard_limiter(url, "new", LIMITS)
    assert other["mail"].try_acquire()
    old = bench.start(bench.erp_shard)
    bench.send("mail", range(TASKS))
    bench.send("erp", range(1))
    bench.has_run("erp", 1)
    wait_until(lambda: "'mail' is in shard 'new'" in old.log(), "the error")
    assert bench.records("mail") == []
    other["mail"].define("1000/s burst 1000")
    new = bench.start({**bench.erp_shard, "new": {"limits": ["mail"]}})
    old.terminate()
    old.wait()
    bench.has_run("mail", TASKS)
    assert bench.records("mail") == [str(number) for number in range(TASKS)]
    assert new.log().count("Limit in force: mail") == 1
    other.store.close()
    home_store_of(other).close()


@pytest.mark.thorough
def test_workers_repeat_where_limits_are_when_the_home_shard_has_lost_that(bench: Bench) -> None:
    """Or a process without the settings would be granted them in the home shard as well."""
    bench.start(bench.erp_shard)
    bench.send("erp", range(TASKS))
    bench.has_run("erp", 2)
    with bench.servers["mail"].client() as client:
        client.flushall()
        wait_until(lambda: client.hexists(HOME_KEYS.shards, "erp"), "the map of the home shard")
    other = shard_limiter(bench.servers["mail"].url, "home", LIMITS)
    with pytest.raises(OtherShardError):
        other["erp"].try_acquire()
    assert other["mail"].try_acquire()
    other.store.close()
    assert len(bench.records("erp")) == 2


@pytest.mark.thorough
def test_a_limit_divided_by_key(bench: Bench) -> None:
    bench.start({"tenants": {"limits": ["tenant"], "by_key": 4}})
    for _ in range(2):
        bench.send("tenant", range(TASKS))
    bench.has_run("tenant", TASKS)
    shards = {Shard("tenants", number, 4) for number in range(4)}
    prefixes = {shard_prefix(DEFAULT_PREFIX, shard): shard for shard in shards}
    entry = ShardEntry("tenants", ("tenant",), 4)
    with bench.servers["mail"].client() as client:
        states = {key.decode() for key in client.scan_iter("*:state:*")}
        found = {key.rpartition(":state:")[::2] for key in states}
        right = {
            (prefix, f"tenant:{key}")
            for prefix, shard in prefixes.items()
            for key in map(str, range(TASKS))
            if entry.shard_of(LimitRef("tenant", key)) == shard
        }
        assert found == right
        wait_until(
            lambda: sum(map(client.hlen, client.scan_iter("*:messages:*"))) == TASKS,
            "the others in their lines",
        )
    assert bench.records("tenant") == [str(number) for number in range(TASKS)]


@pytest.mark.thorough
def test_a_function_gives_limits_to_the_keys_of_all_shards(bench: Bench) -> None:
    url = bench.servers["erp"].url
    bench.put_limits(dict.fromkeys(range(TASKS), "2/h burst 2"))
    shards = {"tenants": {"limits": ["tenant"], "by_key": 4, "url": url}}
    bench.start(shards, look_up=True)
    for _ in range(4):
        bench.send("tenant", range(TASKS + 1))
    bench.has_run("tenant", 2 * TASKS + 1)  # the last key has no row
    with bench.servers["erp"].client() as client:
        wait_until(
            lambda: sum(map(client.hlen, client.scan_iter("*:messages:*"))) == 2 * TASKS + 3,
            "the others in their lines",
        )
    assert len(bench.records("tenant")) == 2 * TASKS + 1
    bench.put_limits(dict.fromkeys(range(TASKS + 1), "4/h burst 4"))
    bench.has_run("tenant", 4 * (TASKS + 1))


@pytest.mark.thorough
def test_a_function_gives_limits_to_keys_of_a_limit_that_has_moved(bench: Bench) -> None:
    """The worker learns of the move when it puts the limit of a new key in force."""
    home_url, url = bench.servers["mail"].url, bench.servers["erp"].url
    bench.put_limits(dict.fromkeys(range(TASKS), "20/s burst 2"))
    bench.start({"erp": {"limits": ["tenant"], "url": url}}, look_up=True)
    bench.send("tenant", [0])
    bench.has_run("tenant", 1)
    shards = {"erp": {"limits": ["tenant"], "url": url}}
    limiter = Limiter(home_url, LIMITS, shards=shards, timeout=30)
    limiter.move_to_shard("tenant", "home")
    for _ in range(2):
        bench.send("tenant", range(1, TASKS))
    bench.has_run("tenant", 2 * TASKS - 1)
    with bench.servers["mail"].client() as client:
        assert client.zcard(HOME_KEYS.own_keys("tenant")) == TASKS
    for store in stores_of(limiter):
        store.close()


@pytest.mark.thorough
def test_a_shard_that_lost_the_limits_of_its_keys_gets_them_again(bench: Bench) -> None:
    url = bench.servers["erp"].url
    bench.put_limits({0: "3/h burst 3"})
    bench.start({"tenants": {"limits": ["tenant"], "by_key": 4, "url": url}}, look_up=True)
    bench.send("tenant", [0])
    bench.has_run("tenant", 1)
    with bench.servers["erp"].client() as client:
        client.flushall()
        bench.send("tenant", [1])  # a task by which the worker learns of it
        wait_until(lambda: bool([*client.scan_iter("*:limits")]), "limits in force")
    bench.has_run("tenant", 2)
    for _ in range(3):
        bench.send("tenant", [0])
    bench.has_run("tenant", 5)


@pytest.mark.thorough
@pytest.mark.parametrize("shards", [{}, {"tenants": {"limits": ["tenant"], "by_key": 6}}])
def test_a_worker_that_stands_still_loses_no_unit(bench: Bench, shards: dict[str, Any]) -> None:
    """A key has one unit an hour: its task would wait for the next one."""
    bench.start(shards, stall=1.5 * BOOKING_HORIZON_SECONDS)
    bench.send("tenant", range(30))
    bench.has_run("tenant", 30)


@pytest.mark.thorough
@pytest.mark.parametrize("busy", ["2 at once", "1000/s burst 1000"])
def test_a_busy_shard_does_not_starve_another(bench: Bench, busy: str) -> None:
    """Each end of a task releases a slot, say, for which the next task of its line waits."""
    bench.start(bench.erp_shard, {**LIMITS, "mail": busy, "erp": "1000/s burst 1000"})
    for limit in ("mail", "erp"):
        bench.pause(limit)
    bench.send("mail", range(100))
    bench.send("erp", range(10))
    wait_until(lambda: bench.waiting("mail") == 100, "all of mail in its line")
    wait_until(lambda: bench.waiting("erp") == 10, "all of erp in its line")
    bench.resume("mail")
    bench.has_run("mail", 10)
    bench.resume("erp")
    bench.has_run("erp", 10)
    assert len(bench.records("mail")) < 90
    bench.has_run("mail", 100)


@pytest.mark.thorough
def test_a_killed_server_costs_the_other_shards_nothing(bench: Bench) -> None:
    """The rate is at least 0.98 of that before."""
    rate, tasks = 40, 240
    bench.start(bench.erp_shard, {**LIMITS, "mail": f"{rate}/s burst 1 outage closed"})
    bench.send("mail", range(tasks))
    bench.send("erp", range(TASKS))
    bench.has_run("mail", tasks // 2)
    bench.servers["erp"].stop()
    bench.send("erp", range(TASKS))
    bench.send("plain", range(TASKS))
    bench.has_run("plain", TASKS)
    bench.has_run("mail", tasks)
    times = sorted(bench.times("mail"))
    gaps = [later - earlier for earlier, later in pairwise(times)]
    before, after = gaps[: tasks // 2], gaps[tasks // 2 :]
    assert median(before) >= 0.98 * median(after)
    assert bench.modes() == {"mail": "normal", "erp": "outage"}
    bench.servers["erp"].start()


def test_two_settings_in_a_rolling_deployment_grant_a_limit_once(bench: Bench) -> None:
    """Both workers use the shard that the first of them has proposed."""
    limits = {**LIMITS, "mail": "12/h burst 12"}
    bench.start({}, limits)
    bench.send("mail", range(6))
    bench.has_run("mail", 6)
    bench.start({"erp": {"limits": ["mail", "erp"], "url": bench.servers["erp"].url}}, limits)
    bench.send("mail", range(6, 36))
    wait_until(lambda: bench.waiting("mail") == 24, "the rest in its line")
    bench.has_run("mail", 12)
    assert len(bench.records("mail")) == 12
    with bench.servers["erp"].client() as client:
        assert not client.hexists(keys_of("erp").limits, "mail")
