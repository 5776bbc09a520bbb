"""Every script on a server that is out of memory: it works, or it is refused and does nothing.

The memory is full during each call of a tour through all operations. A refused call is repeated
with memory, so that the tour goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from celery_throttle import StoreError
from celery_throttle.limiter.limiter import apply_rules
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.key import ItemLike, LimitRef, parse_item
from celery_throttle.limits.rules.reader import read_rules
from celery_throttle.observe.metrics.figures import read_figures
from celery_throttle.observe.report import read_recorded
from celery_throttle.observe.status.definitions import limits_below, preview_pause
from celery_throttle.observe.status.fan_outs import read_fan_outs
from celery_throttle.observe.status.fleet import (
    find_members,
    find_stranded,
    is_consumed,
    note_ungated,
    read_rules_status,
    read_workers,
)
from celery_throttle.observe.status.limits import read_details
from celery_throttle.observe.status.records import record_totals
from celery_throttle.observe.status.runnable import read_overdue
from celery_throttle.observe.status.stored import begin_once, is_stored
from celery_throttle.observe.values import Ungated
from celery_throttle.operations.acquire import GateRequest, gate_call
from celery_throttle.operations.author import Author
from celery_throttle.operations.define import make_due, register_missing
from celery_throttle.operations.fan_outs import outcomes_call
from celery_throttle.operations.lines import discard, scan_call
from celery_throttle.operations.rules import pack_report, report_rules
from celery_throttle.operations.shards import (
    HOME_IDENTITY,
    ShardIdentity,
    begin_move,
    count_slots,
    end_move,
    enter,
    leave,
)
from celery_throttle.operations.waiting import (
    ClaimStatus,
    LineTasks,
    ParkRequest,
    claim_call,
    list_claims_call,
    park_call,
    quarantine_call,
    requeue_call,
    withdraw_call,
)
from celery_throttle.store.client import Store
from celery_throttle.store.connection import Connection
from celery_throttle.store.pending import PendingCalls
from celery_throttle.store.script import Argument, Call, script
from tests.bulk.removal.conftest import Site
from tests.lua_names import script_names
from tests.servers.server import Server
from tests.store.conftest import StartServer

#: What a full server may refuse: what grants units outside of lines, what adds waiting tasks, and
#: records of the past. All else frees memory, keeps a promise, or is how operators help.
MAY_BE_REFUSED = {
    *("acquire", "admit", "broker_wait"),
    *("park", "enlist"),
    *("record_totals", "count_outage"),
}

LIMITS = {
    "api": "1/h burst 100",
    "mail": "1/h burst 100 max-keys 9 max-waiting 50",
    "log": "100/h using sliding-log",
    "parts": "100/h using sliding-window",
    "day": "100/d using fixed-window in Europe/Berlin",
    "learned": "adaptive 10..100/s",
    "slots": "adaptive 1..2 at once",
    "moved": "1/h",
}

LEASE = 30.0


class FullStore(Store):
    """A store whose server is out of memory during each call.

    Attributes:
        works: names of scripts that have worked there.
        refused: names of scripts that the server has refused, all of which did nothing.
    """

    def __init__(self, server: Server) -> None:
        super().__init__(server.url, timeout=30)
        self.works: set[str] = set()
        self.refused: set[str] = set()
        self.client: Any = server.client()
        self._lock = threading.Lock()  # a removal renews its lease in a thread of its own

    def begin(self, *calls: Call, may_wait: bool = False) -> PendingCalls:  # noqa: ARG002  # as in the base
        """Send nothing ahead: :meth:`finish` runs the calls."""
        return PendingCalls(calls, None)

    def probe(self, call: Call, read: Callable[[Connection], Any] = Connection.read) -> Any:
        """See :meth:`Store.probe`; :meth:`run` comes here, too."""
        with self._lock:
            before = self._count_changes()
            self.client.config_set("maxmemory", 1)
            try:
                reply = super().probe(call, read)
            except StoreError as error:
                if "OOM" not in str(error):
                    raise
                self.refused.add(call.script.name)
            else:
                self.works.add(call.script.name)
                return reply
            finally:
                self.client.config_set("maxmemory", 0)
            assert self._count_changes() == before, f"{call.script.name} did half of its work"
            return super().probe(call, read)

    def _count_changes(self) -> int:
        """Return how many changes of its data the server counts; expired keys are none."""
        return int(self.client.info("persistence")["rdb_changes_since_last_save"])

    def close(self) -> None:
        super().close()
        self.client.close()


class Tour:
    """All operations of one app, with the claims of some workers."""

    def __init__(self, broker: str, server: Server) -> None:
        self.site = Site(broker, LIMITS, throttle_url=server.url)
        self.throttle = self.site.throttle
        self.store = self.throttle.store = FullStore(server)
        self.keys = self.throttle.keys
        self.queue = self.throttle.qualify("celery")
        self.token = 0
        self.ids: dict[int, str] = {}  # token -> id of the claimed task

    def close(self) -> None:
        self.store.close()
        self.site.close()

    def run(self, name: str, keys: Sequence[str], *args: Argument) -> Any:
        return self.store.run(Call(script(name), keys, args))

    def see(self, plan: Any) -> Any:
        return self.throttle.run_plan(plan)

    # Lines and claims.

    def park(
        self, *limits: ItemLike, count: int = 1, acknowledged: Sequence[str] = ()
    ) -> list[str]:
        """Let tasks wait, and return their ids."""
        requirement, ids = self.throttle.require([self.throttle[limit] for limit in limits], 1), []
        for _ in range(count):
            self.token += 1
            ids.append(f"task-{self.token}")
            task = ParkRequest(ids[-1], b"message", requirement, identity=f"{ids[-1]} 0 0")
            call = park_call(
                self.keys,
                [LineTasks(self.queue, [task])],
                remember=60.0,
                acknowledged=acknowledged,
            )
            assert self.store.run(call)[0][0] == b"parked"
        return ids

    def park_together(self, *limits: ItemLike) -> None:
        """Let a task wait at each of some limits, by one call."""
        lines = []
        for limit in limits:
            self.token += 1
            requirement = self.throttle.require([self.throttle[limit]], 1)
            task = ParkRequest(f"task-{self.token}", b"message", requirement)
            lines.append(LineTasks(self.queue, [task]))
        replies = self.store.run(park_call(self.keys, lines, remember=60.0))
        assert [reply[0] for reply in replies] == [b"parked"] * len(limits)

    def claim(self, worker: str, count: int, **options: Any) -> list[int]:
        """Claim tasks, and return the tokens of those that were due."""
        self.token += count
        tokens = range(self.token - count, self.token)
        queue = self.keys.queue(self.queue) if count else ()
        options = {"lease": LEASE, "registered": True, **options}
        _, _, *rows = self.store.run(claim_call(self.keys, worker, queue, tokens, **options))
        self.ids |= {row[0]: row[5].decode() for row in rows}
        return [row[0] for row in rows]

    def slot(self, name: str, worker: str, token: int) -> tuple[str, str, str]:
        ref = parse_item(name)
        return (
            self.keys.entries(ref),
            self.keys.waiting_lists(ref),
            f"{worker} {token} {self.ids[token]}",
        )

    def withdraw(self, worker: str, *ids: str) -> list[int]:
        self.token += len(ids)
        first = self.token - len(ids)
        queue = self.keys.queue(self.queue)
        rows = self.store.run(withdraw_call(self.keys, worker, queue, first, ids, lease=LEASE))
        return [row[0] for row in rows]


@pytest.fixture
def tour(command: Path, start_server: StartServer, redis_url: str) -> Iterator[Tour]:
    tour = Tour(redis_url, start_server(command))
    yield tour
    tour.close()


def change_limits(tour: Tour) -> None:
    throttle = tour.throttle
    throttle.register()
    for key in (None, "42"):
        throttle[LimitRef("api", key)].define("2/h burst 200", lasts=60)
        throttle[LimitRef("api", key)].define("3/h burst 300", weight=3)
        assert throttle["api", "42"].peek().burst == 300
        throttle[LimitRef("api", key)].undefine()
    assert throttle["api", "42"].peek().burst == 100
    tour.see(register_missing(throttle.plans, [parse_item("day")]))
    rules = read_rules('[limits]\napi = "5/h burst 500"\n[weights]\napi = 3', "rules.toml")
    assert apply_rules(throttle, rules, "rules.toml")
    report = pack_report(None, "rules.toml", "")
    assert tour.see(report_rules(throttle.plans, "w", report, "", 60))[1] is not None
    tour.see(report_rules(throttle.plans, "w", report, "", 0))
    assert apply_rules(throttle, read_rules("[limits]\n", "rules.toml"), "rules.toml")
    erp = ShardIdentity("erp")
    for shard in (erp, HOME_IDENTITY):
        begun = tour.see(begin_move(tour.keys, "moved", shard))
        assert tour.see(count_slots(throttle.plans, "moved", 0.001, Author.of())) == 0
        left = tour.see(leave(throttle.plans, begun, shard))
        if shard is HOME_IDENTITY:
            tour.see(enter(throttle.plans, begun, left, shard, Author.of()))
        tour.see(end_move(tour.keys, ["moved"], shard))


def use_units(tour: Tour) -> None:
    throttle = tour.throttle
    names: list[ItemLike] = ["api", "log", "parts", "day", ("mail", "42")]
    for name in names:
        tour.store.refused.discard("acquire")
        assert throttle[name].try_acquire()
        assert "acquire" in tour.store.refused, name
        throttle[name].reserve(2).settle(1)
        throttle[name].reserve(1).settle(3)
        assert throttle[name].peek().remaining == 100 - 1 - 1 - 3
    assert throttle.try_acquire([throttle[name] for name in names])
    assert throttle["api"].acquire_up_to(2).granted == 2
    wants = [GateRequest(throttle.require(["api"], 1))]
    assert tour.store.run(gate_call(throttle.plans, wants, 0))[0][0] == 1
    for refused in (True, False):
        for name in ("learned", "parts"):
            throttle[name].learn(Feedback(refused=refused, stop=60.0, left=3))
            assert not throttle[name].try_acquire()


def learn(tour: Tour) -> None:
    """From refusals without a time: each makes the pauses of their row longer."""
    throttle, client = tour.throttle, tour.store.client
    for name in ("learned", "slots"):
        throttle[name].reset()
        stops = []
        for _ in range(6):
            stops.append(throttle[name].learn(Feedback(refused=True)))
            throttle[name].resume()
        assert stops == sorted({*stops})
        assert client.exists(tour.keys.refusals(parse_item(name)))
        assert throttle[name].status().usage[0].share < 1
        throttle[name].learn(Feedback())
        assert not client.exists(tour.keys.refusals(parse_item(name)))
        throttle[name].reset()


def hold_slots(tour: Tour) -> None:
    throttle, client, ref = tour.throttle, tour.store.client, parse_item("slots")
    entries = tour.keys.entries(ref)
    tour.store.refused.discard("acquire")
    with throttle["slots"].slot(), throttle["slots"].slot():
        assert "acquire" in tour.store.refused
        tour.park("slots")
        assert tour.claim("w", 1) == []
        leases = dict(client.zrange(entries, 0, -1, withscores=True))
        tour.see(throttle.plans.renew([(ref, holder.decode()) for holder in leases], 3600))
        renewed = dict(client.zrange(entries, 0, -1, withscores=True))
        assert all(renewed[holder] > leases[holder] for holder in leases)
    assert client.zcard(entries) == 0
    (token,) = tour.claim("w", 1)
    tour.claim("w", 0, settled=[token], releases=[tour.slot("slots", "w", token)])
    assert client.zcard(entries) == 0


def stop_limits(tour: Tour) -> None:
    throttle = tour.throttle
    for name in ("api", ("mail", "42")):
        ref = parse_item(name)
        tour.park(name)
        throttle[name].pause(3600)
        throttle[name].pause(None, reason="full")
        assert throttle[name].peek().paused
        assert throttle[name].resume()
        throttle[name].pause(None)
        throttle[name].reset()
        assert not throttle[name].peek().paused
        tour.see(make_due(throttle.plans, ref.name))
    assert set(throttle.pause_all(60)) == set(LIMITS)
    assert set(throttle.resume_all()) == set(LIMITS)
    assert tour.see(begin_once(throttle.observer, "pause", 60))
    assert len(tour.claim("w", 2)) == 2
    tour.claim("w", 0, settled=range(tour.token + 1))


def take_from_lines(tour: Tour) -> None:
    client, keys = tour.store.client, tour.keys
    messages = keys.queue(tour.queue).messages
    ids = tour.park("api", "slots", count=6)
    ids += tour.park(("mail", "42"), count=4, acknowledged=ids)
    # Two tasks are claimed with the slots.
    tokens = tour.claim("w", 9)
    assert len(tokens) == 6
    tour.claim("w", 0, lease=0.0)
    tour.claim("other", 0)
    assert tour.store.run(requeue_call(keys, "w", "dead", 2)) == 4
    assert tour.store.run(requeue_call(keys, "w", "own", 9, delivered(tokens))) == 0
    assert client.hlen(messages) == 10
    first, second, *others = tour.claim("w", 9)
    tour.store.run(quarantine_call(keys, "w", first, "2 gone"))
    tour.store.run(quarantine_call(keys, "w", second, "2 gone"))
    cursor, *rows = tour.store.run(scan_call(keys.quarantine, "quarantine", "0"))
    assert (cursor, len(rows)) == (b"0", 2)
    quarantined = [row[0] for row in rows]
    tour.run("recall_quarantined", [keys.quarantine, keys.totals()], "", *quarantined)
    released = [tour.slot("slots", "w", token) for token in (first, second, *others)]
    tour.claim("w", 0, settled=others, releases=released)
    waiting = sorted(task.decode() for task in client.hkeys(messages))
    assert len(waiting) == 6
    tour.store.run(scan_call(messages, "messages", "0"))
    assert len(tour.withdraw("w", *waiting)) == 6
    every = delivered(range(tour.token + 1))
    assert tour.store.run(requeue_call(keys, "w", "own", 100, every)) == 0
    assert client.hlen(messages) == 6
    assert tour.see(discard(keys, tour.queue)) == 6


def delivered(tokens: Iterable[int]) -> list[tuple[int, ClaimStatus]]:
    return [(token, ClaimStatus.DELIVERED) for token in tokens]


def give_back_units(tour: Tour) -> None:
    """Of tasks that were claimed, but not started."""
    limit = tour.throttle["log"]
    limit.reset()
    tour.park("log", count=3)
    requeued, settled, quarantined = tour.claim("w", 3)
    assert limit.peek(0).remaining == 97
    tour.store.run(requeue_call(tour.keys, "w", "own", 1, delivered([requeued])))
    assert limit.peek(0).remaining == 98
    tour.claim("w", 0, settled=[-settled])
    assert limit.peek(0).remaining == 99
    tour.store.run(quarantine_call(tour.keys, "w", quarantined, "2 gone"))
    assert limit.peek(0).remaining == 100
    assert tour.see(discard(tour.keys, tour.queue)) == 2


def remove_tasks(tour: Tour) -> None:
    site, throttle = tour.site, tour.throttle
    for removal in (throttle["api"].drain, throttle["api"].drop):
        site.send(5)
        assert len(site.park()) == 5
        (token,) = tour.claim("w", 1)
        tour.store.run(quarantine_call(tour.keys, "w", token, "2 gone"))
        assert throttle.count_waiting().waiting == 5
        assert removal().removed == 5
        site.at_broker()


def fan_out(tour: Tour) -> None:
    throttle = tour.throttle
    handle = throttle.fan_out(
        [tour.site.app.tasks["call"].s(n).set(task_id=f"{n}") for n in range(20)], "nightly"
    )
    handle.pause()
    handle.resume()
    record = tour.keys.fan_out("nightly")
    tour.withdraw("w", "0")
    tour.store.run(outcomes_call(record, [("0", "done")]))
    assert handle.cancel() == 19
    assert handle.progress().complete
    assert len(list(handle.results())) == 20
    assert [one.name for one in tour.see(read_fan_outs(throttle.observer))] == ["nightly"]


def read_status(tour: Tour) -> None:
    throttle, keys = tour.throttle, tour.keys
    observer, ref = throttle.observer, parse_item("mail")
    ids = tour.park(("mail", "42"), "slots", count=5)
    tour.claim("w", 1)
    tour.store.refused.discard("park")
    tour.park_together("log", ("mail", "7"), "parts")
    assert "park" in tour.store.refused
    tour.see(record_totals(observer))
    throttle.status()
    assert throttle.explain(ids[-1]).location == "line"
    assert throttle.explain("nowhere").location == "unknown"
    assert throttle["mail"].list_waiting().tasks
    assert throttle.changes()
    tour.see(read_figures(observer, 100))
    tour.see(read_details(observer, parse_item("slots")))
    tour.see(read_recorded(observer, "mail", 60))
    tour.see(read_workers(observer, 9))
    tour.see(find_stranded(observer))
    tour.see(is_consumed(observer, tour.queue))
    tour.see(is_stored(observer, parse_item(("mail", "42"))))
    tour.see(limits_below(observer, ref))
    tour.see(read_overdue(observer, [tour.queue]))
    tour.see(preview_pause(observer, ref, None))
    tour.see(read_rules_status(observer))
    throttle["mail"].forecast()
    throttle.count_waiting()
    tour.see(discard(keys, tour.queue))


def report(tour: Tour) -> None:
    keys = tour.keys
    names = [
        *(keys.membership, keys.limits, keys.quarantine, keys.temporary_queues),
        *(keys.consumed_queues, keys.changes, keys.worker_queues, keys.limits_with_keys),
        keys.queue(tour.queue).lines,
        keys.pause(parse_item("api")),
    ]
    second = 1_000_000
    # The last heartbeat was written before the clock was set back.
    tour.store.client.zadd(keys.membership, {"": -2_000_000_000 * second})
    for lease in (second, 0):
        args: list[Argument] = ["", "w", lease, 1000, second, second, "0", "mail", "api"]
        assert tour.run("heartbeat", names, *args)[0] == (1 if lease else 0)
    tour.run("count_outage", [keys.outages], 1)
    tour.see(find_members(tour.throttle.observer, ["w"]))
    tour.see(note_ungated(tour.throttle.observer, [Ungated("charge", releases_early=False)]))
    assert tour.store.run(list_claims_call(keys, "nobody")) == []
    assert tour.run("missing_rights", [keys.permission_probe], "nobody") == []
    tour.run("server_info", [keys.limits])


def wait_at_broker(tour: Tour) -> None:
    keys, ref = tour.keys, parse_item("api")
    state, *pauses = keys.decision(ref)
    names = [keys.limits, state, keys.entries(ref), *pauses]
    names += [keys.waiting_lists(ref), keys.return_times(ref), keys.totals()]
    args: list[Argument] = ["", 0, 0, -1, "", 1, "1", "1", "api", "api", 1_000_000]
    assert tour.run("broker_wait", names, *args)[0] == b"admitted"


def test_each_script_works_or_is_refused_as_a_whole(tour: Tour) -> None:
    for operations in (
        change_limits,
        use_units,
        learn,
        hold_slots,
        stop_limits,
        take_from_lines,
        give_back_units,
        remove_tasks,
        fan_out,
        read_status,
        report,
        wait_at_broker,
    ):
        operations(tour)
    store = tour.store
    assert store.refused <= MAY_BE_REFUSED, "a script that must work was refused"
    assert store.works | store.refused == {*script_names()}, "a script that nothing here runs"
    assert store.refused == MAY_BE_REFUSED, "a script that a full server does not refuse any more"
    # A look and a slot are not refused.
    assert store.works & store.refused == {"acquire"}
