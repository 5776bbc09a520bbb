"""A script that fails in the middle loses no task, at whichever command.

What called it does what workers do after an error: tokens are given back, a park is tried again.
Then all that waits runs, at most twice, and the next use of a limit leaves nothing behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from celery_throttle import StoreError
from celery_throttle.bulk.fan_out.enlist import (
    Destination,
    EnlistBatch,
    EnlistReply,
    FanOutOptions,
    LineEntry,
)
from celery_throttle.limits.key import ItemLike
from celery_throttle.limits.requirement import LimitsLike
from celery_throttle.operations.lines import Claimant, WithdrawPlans
from celery_throttle.operations.waiting import Kept, LineTasks, ParkRequest, park_call
from celery_throttle.store.script import Call, script
from tests.operations.torn import TornStore
from tests.protocol import LINE_KINDS, SECOND, Protocol

pytestmark = pytest.mark.thorough

LIMITS: dict[str, LimitsLike] = {
    "api": "10/s burst 3",
    "mail": "5/s max-keys 9 max-waiting 50",
    "slots": "2 at once",
    "log": "9/s using sliding-log",
    "slow": ["9/h burst 9", "9/h using sliding-log"],
}
SETS: Sequence[Sequence[ItemLike]] = (
    ["api"],
    ["api", ("mail", "a")],
    [("mail", "b")],
    ["slots"],
    ["log"],
)
#: No other task is in the lines of a fan-out.
OF_FAN_OUT: Sequence[Sequence[ItemLike]] = (["api", ("mail", "f")], [("mail", "f")])

#: More than any script here makes.
MOST = 600


class Traffic:
    """Tasks in several lines, and one worker.

    Attributes:
        ran: how often each task ran.
    """

    def __init__(self, protocol: Protocol, store: TornStore) -> None:
        self.protocol = protocol
        self.store = protocol.store = store
        self.ran: Counter[str] = Counter()
        self.holders: dict[int, str] = {}
        self.about: dict[str, Sequence[ItemLike]] = {}
        protocol.client.flushdb()
        protocol.limiter.register()

    def arrive(self, limits: Sequence[ItemLike], rank: int = 3) -> str:
        task = str(len(self.about))
        self.about[task] = limits
        self.park(task, rank)
        return task

    def park(self, task: str, rank: int = 3, *, again: bool = False, kept: Kept = Kept.ALL) -> None:
        reply = self.protocol.park(
            task,
            self.about[task],
            rank=rank,
            redelivered=again,
            may_run=False,
            holder="gate",
            kept=kept,
        )
        outcome = reply.outcome
        if outcome == "surplus":  # its worker ends it
            self.ran[task] += 1
        else:
            assert outcome in ("parked", "known")

    def park_together(self, *lines: Sequence[str], again: bool = False) -> None:
        """Park tasks by one call: lists of tasks of one line each."""
        protocol, found = self.protocol, []
        for tasks in lines:
            limits = protocol.require(self.about[tasks[0]])
            waiting = [
                ParkRequest(task, b"m", limits, identity=f"{task} 0 0", redelivered=again)
                for task in tasks
            ]
            found.append(LineTasks("q", waiting))
        call = park_call(protocol.keys, found, remember=60.0, lease=30.0, now=protocol.now)
        assert {reply[0] for reply in self.store.run(call)} <= {b"parked", b"known"}

    def claim(self, room: int, worker: str = "w") -> list[int]:
        """Claim tasks; after an error requeue the claims, unless the worker is to die."""
        protocol = self.protocol
        first = protocol.tokens[worker] + 1
        try:
            rows = protocol.claim(worker, room, ahead=20_000)
        except StoreError:
            if worker != "dead":
                protocol.back(worker, "own", *range(first, first + room))
            raise
        return [self.run(row) for row in rows]

    def run(self, row: Any) -> int:
        self.ran[row.id] += 1
        token: int = row.token
        self.holders[token] = f"w {token} {row.id}"
        return token

    def settle(self, tokens: Sequence[int]) -> None:
        holders = [self.holders[token] for token in tokens if token in self.holders]
        released: list[tuple[ItemLike, str]] = [("slots", holder) for holder in holders]
        self.protocol.claim("w", 0, settled=tokens, released=released)

    def drain(self) -> None:
        """All tasks run, in any number of claims; then no keys are left."""
        for _ in range(4 * len(self.about) + 60):
            if not self.protocol.waiting():
                break
            tokens, ask = self.claim(10), self.protocol.ask
            self.settle(tokens)
            self.protocol.now += max(1, ask)
        assert self.protocol.waiting() == []
        assert set(self.ran) == set(self.about)
        assert max(self.ran.values()) <= 2
        for limits in SETS:
            self.protocol.now += 10 * SECOND
            task = self.arrive(limits)
            self.settle(self.claim(1))
            assert self.ran[task] == 1
        self.protocol.check()
        for kind in (*LINE_KINDS, "claims"):
            assert self.protocol.client.keys(f"{{throttle}}:{kind}:*") == []
        assert self.protocol.client.zcard("{throttle}:workers") == 0


@pytest.fixture
def make(redis_url: str) -> Iterator[Callable[[], Traffic]]:
    protocol, store = Protocol(redis_url, LIMITS), TornStore(redis_url)
    plain = protocol.store

    def make() -> Traffic:
        return Traffic(protocol, store)

    yield make
    protocol.client.flushdb()
    store.close()
    protocol.store = plain
    protocol.close()


def each_command(make: Callable[[], Traffic], name: str, use: Callable[[Traffic], None]) -> None:
    """Run a script that fails at its first command, then at its second, until it passes."""
    for command in range(1, MOST):
        traffic = make()
        for _ in range(2):
            for limits in SETS:
                traffic.arrive(limits)
        traffic.store.tear(name, command)
        try:
            use(traffic)
        except StoreError:
            traffic.drain()
        else:
            assert traffic.store.whole(), f"{name} was not used"
            traffic.drain()
            return
    raise AssertionError(f"{name} makes more than {MOST} commands")


def test_claims(make: Callable[[], Traffic]) -> None:
    each_command(make, "claim", lambda traffic: traffic.settle(traffic.claim(8)))


@pytest.mark.parametrize("change", ["resume", "reset"])
@pytest.mark.parametrize("paused", ["api", ("mail", "b")])
def test_a_pause_is_lifted_by_the_next_call(
    make: Callable[[], Traffic], change: str, paused: ItemLike
) -> None:
    for command in range(1, MOST):
        traffic = make()
        limiter = traffic.protocol.limiter
        plain, limiter.store = limiter.store, traffic.store
        try:
            limiter[paused].pause(None)
            for limits in SETS:
                traffic.arrive(limits)
            traffic.settle(traffic.claim(8))  # from here on nobody looks at what is behind it
            traffic.store.tear(change, command)
            try:
                getattr(limiter[paused], change)()
            except StoreError:
                getattr(limiter[paused], change)()
                traffic.drain()
            else:
                assert traffic.store.whole()
                traffic.drain()
                return
        finally:
            limiter.store = plain
    raise AssertionError(f"{change} makes more than {MOST} commands")


def test_a_claim_that_settles(make: Callable[[], Traffic]) -> None:
    def use(traffic: Traffic) -> None:
        at = traffic.store._at
        torn = dict(at)
        at.clear()
        tokens = traffic.claim(8)
        at.update(torn)
        try:
            traffic.settle(tokens)
        except StoreError:  # it is told again
            traffic.settle(tokens)
            raise

    each_command(make, "claim", use)


@pytest.mark.parametrize("limits", SETS)
@pytest.mark.parametrize("more", [0, 1])
def test_parks(make: Callable[[], Traffic], limits: Sequence[ItemLike], more: int) -> None:
    """The first task of a line, and one that follows."""
    for command in range(1, MOST):
        traffic = make()
        for _ in range(more):
            traffic.arrive(limits)
        traffic.store.tear("park", command)
        try:
            traffic.arrive(limits, rank=2)
        except StoreError:
            for again in (True, False):  # the second was sent once more for no reason
                traffic.park(str(more), 2, again=again)
            traffic.drain()
        else:
            assert traffic.store.whole()
            traffic.drain()
            return


@pytest.mark.parametrize("limits", SETS)
def test_parks_together(make: Callable[[], Traffic], limits: Sequence[ItemLike]) -> None:
    tasks = list("abcd")
    for command in range(1, MOST):
        traffic = make()
        traffic.about.update(dict.fromkeys(tasks, limits))
        traffic.store.tear("park", command)
        try:
            traffic.park_together(tasks)
        except StoreError:
            traffic.park_together(tasks, again=True)
            traffic.drain()
        else:
            assert traffic.store.whole()
            traffic.drain()
            return


@pytest.mark.parametrize(("one", "another"), [SETS[:2], SETS[2:4]])
def test_parks_of_several_lines(
    make: Callable[[], Traffic], one: Sequence[ItemLike], another: Sequence[ItemLike]
) -> None:
    """Lines that share a limit or not; the second attempt is by one call, or one for each task."""
    for command in range(1, MOST):
        traffic = make()
        traffic.about = {"a": one, "b": one, "c": another, "d": another}
        traffic.store.tear("park", command)
        try:
            traffic.park_together("ab", "cd")
        except StoreError:
            if command % 2:
                traffic.park_together("ab", "cd", again=True)
            else:
                for task in traffic.about:
                    traffic.park_together(task, again=True)
            traffic.drain()
        else:
            assert traffic.store.whole()
            traffic.drain()
            return


@pytest.mark.parametrize("limits", SETS)
@pytest.mark.parametrize("kept", [Kept.NEWEST, Kept.FIRST])
def test_parks_where_one_task_may_wait(
    make: Callable[[], Traffic], limits: Sequence[ItemLike], kept: Kept
) -> None:
    """A task that is replaced runs, or ends as revoked."""
    for command in range(1, MOST):
        traffic = make()
        traffic.about = {"a": limits, "b": limits}
        traffic.park("a", kept=kept)
        traffic.store.tear("park", command)
        try:
            traffic.park("b", 2, kept=kept)
        except StoreError:
            traffic.park("b", 2, again=True, kept=kept)
            traffic.drain()
        else:
            assert traffic.store.whole()
            traffic.drain()
            return


@pytest.mark.parametrize("kept", [Kept.NEWEST, Kept.FIRST])
def test_a_claim_goes_back_where_one_task_may_wait(make: Callable[[], Traffic], kept: Kept) -> None:
    def use(traffic: Traffic) -> None:
        traffic.about.update({"a": [("mail", "z")], "b": [("mail", "z")]})
        traffic.park("a", kept=kept)
        tokens = [row.token for row in traffic.protocol.claim("w", 20)]
        traffic.park("b", kept=kept)
        try:
            traffic.protocol.back("w", "own", *tokens)
        except StoreError:
            traffic.protocol.back("w", "own", *tokens)
            raise

    each_command(make, "requeue", use)


def test_claims_that_go_back(make: Callable[[], Traffic]) -> None:
    def use(traffic: Traffic) -> None:
        protocol = traffic.protocol
        tokens = [row.token for row in protocol.claim("w", 8, ahead=20_000)]
        try:
            protocol.back("w", "own", *tokens)
        except StoreError:
            protocol.back("w", "own", *tokens)
            raise

    each_command(make, "requeue", use)


@pytest.mark.parametrize("name", ["claim", "requeue", "settle", "quarantine"])
def test_units_that_others_took_are_not_given_back(make: Callable[[], Traffic], name: str) -> None:
    """Two tasks are claimed and never start, four units are in use: five are left at most."""
    for command in range(1, MOST):
        traffic = make()
        protocol, store = traffic.protocol, traffic.store
        assert protocol.limiter["slow"].acquire_up_to(4).granted == 4
        for _ in range(2):
            traffic.arrive(["slow"])
        first = protocol.tokens["w"] + 1
        calls: dict[str, Callable[[], Any]] = {
            "claim": partial(protocol.claim, "w", 2),
            "requeue": partial(protocol.back, "w", "own", first, first + 1),
            "settle": partial(protocol.claim, "w", 0, settled=[-first, -first - 1]),
            "quarantine": partial(protocol.set_aside, "w", first),
        }
        if name != "claim":
            protocol.claim("w", 2)
        store.tear("claim" if name == "settle" else name, command)
        with suppress(StoreError):
            calls[name]()
        is_whole = store.whole()
        for again in ("settle" if name == "settle" else "quarantine", "requeue"):
            calls[again]()
        left = protocol.limiter["slow"].peek(0).remaining
        assert left <= 5
        if is_whole:
            assert left == 5
            return
    raise AssertionError(f"{name} makes more than {MOST} commands")


def test_claims_of_a_dead_worker(make: Callable[[], Traffic]) -> None:
    def use(traffic: Traffic) -> None:
        protocol = traffic.protocol
        protocol.claim("dead", 8, ahead=20_000)
        protocol.now += 60 * SECOND
        try:
            while protocol.back("dead", "dead", most=3):
                pass
        except StoreError:
            assert protocol.client.zscore("{throttle}:workers", "dead"), "nobody would know of it"
            while protocol.back("dead", "dead", most=3):
                pass
            raise

    each_command(make, "requeue", use)


def test_a_worker_that_dies_after_a_claim_that_failed(make: Callable[[], Traffic]) -> None:
    def use(traffic: Traffic) -> None:
        protocol = traffic.protocol
        try:
            protocol.claim("dead", 0, settled=traffic.claim(8, "dead"))
        except StoreError:
            protocol.now += 60 * SECOND
            protocol.claim("w", 0)
            if protocol.dead:
                assert protocol.dead == b"dead"
                protocol.back("dead", "dead")
            raise

    each_command(make, "claim", use)


def test_tasks_that_are_withdrawn(make: Callable[[], Traffic]) -> None:
    def use(traffic: Traffic) -> None:
        protocol = traffic.protocol
        first = protocol.tokens["w"] + 1
        try:
            traffic.settle([traffic.run(row) for row in protocol.withdraw("w", "0", "3", "5")])
        except StoreError:
            protocol.back("w", "own", *range(first, first + 3))
            raise

    each_command(make, "withdraw", use)


def test_lines_that_are_withdrawn(make: Callable[[], Traffic]) -> None:
    def use(traffic: Traffic) -> None:
        protocol = traffic.protocol
        plans = WithdrawPlans(protocol.keys, None, protocol.now)
        lines = list(protocol.limiter.run_plan(plans.lines("q")))
        claimant, first = Claimant("w", 30.0), 100
        call = plans.lines_call(
            claimant, "q", lines, first_token=first, parked_by=protocol.now, most=7
        )
        try:
            _, _, *rows = protocol.store.run(call)
        except StoreError:
            protocol.back("w", "own", *range(first, first + 7))
            raise
        assert len(rows) == 7
        traffic.ran.update(task_id.decode() for *_, task_id in rows)
        traffic.settle([token for token, *_ in rows])

    each_command(make, "withdraw_lines", use)


def test_quarantined_tasks_that_are_withdrawn(make: Callable[[], Traffic]) -> None:
    def use(traffic: Traffic) -> None:
        protocol = traffic.protocol
        rows = protocol.claim("w", 4, ahead=20_000)
        for row in rows:
            protocol.set_aside("w", row.token)
        plans = WithdrawPlans(protocol.keys, None, protocol.now)
        first = 100
        call = plans.quarantined_call(Claimant("w", 30.0), "q", "0", first_token=first)
        try:
            _, count, *taken = protocol.store.run(call)
        except StoreError:
            protocol.back("w", "own", *range(first, first + len(rows)))
            protocol.recall(*(row.id for row in rows))
            raise
        assert count == len(rows)
        traffic.ran.update(task_id.decode() for *_, task_id in taken)
        traffic.settle([token for token, *_ in taken])

    each_command(make, "withdraw_quarantined", use)


def test_tasks_that_are_set_aside(make: Callable[[], Traffic]) -> None:
    def use(traffic: Traffic) -> None:
        protocol = traffic.protocol
        row, *others = protocol.claim("w", 8, ahead=20_000)
        traffic.settle([traffic.run(other) for other in others])
        try:
            protocol.set_aside("w", row.token)
        except StoreError:
            protocol.back("w", "own", row.token)
            protocol.recall(row.id)
            raise
        protocol.recall(row.id)

    each_command(make, "quarantine", use)


def test_tasks_that_are_recalled(make: Callable[[], Traffic]) -> None:
    def use(traffic: Traffic) -> None:
        protocol = traffic.protocol
        rows = protocol.claim("w", 8, ahead=20_000)
        for row in rows:
            protocol.set_aside("w", row.token)
        ids = [row.id for row in rows]
        try:
            protocol.recall(*ids)
        except StoreError:
            protocol.recall(*ids)
            raise

    each_command(make, "recall_quarantined", use)


def test_a_batch_of_a_fan_out(make: Callable[[], Traffic]) -> None:
    """The batch is sent again, as after a lost reply."""

    def use(traffic: Traffic) -> None:
        protocol = traffic.protocol
        keys, options = protocol.keys, FanOutOptions("job", None, 1.0)
        batch = EnlistBatch(keys, options, closed=True)
        first = len(traffic.about)
        for number in range(first, first + 8):
            limits = OF_FAN_OUT[number % 2]
            traffic.about[str(number)] = limits
            requirement = protocol.require(limits)
            line = Destination("q", requirement.refs, keys.line("q", requirement.refs))
            batch.add(
                LineEntry(line, str(number), 3 - number // 2 % 2, 0, b"message", requirement.costs)
            )
        call = batch.call()
        call = type(call)(call.script, call.keys, [protocol.now, *call.args[1:]])
        try:
            reply = EnlistReply.read(protocol.store.run(call))
        except StoreError:
            reply = EnlistReply.read(protocol.store.run(call))
            assert (reply.outcome, reply.processed) == ("done", 8)
            raise
        assert (reply.outcome, reply.processed, reply.sent) == ("done", 8, 8)

    each_command(make, "enlist", use)


def test_tasks_that_are_discarded(make: Callable[[], Traffic]) -> None:
    """A second attempt discards the tasks, and leaves no keys."""

    def discard(traffic: Traffic) -> None:
        protocol, left = traffic.protocol, 1
        while left:
            names = [*protocol.keys.queue("q"), protocol.keys.totals()]
            call = Call(script("discard"), names, [protocol.now, 4])
            _, left = protocol.store.run(call)

    def use(traffic: Traffic) -> None:
        traffic.settle(traffic.claim(1))
        traffic.about = {task: traffic.about[task] for task in traffic.ran}
        try:
            discard(traffic)
        except StoreError:
            discard(traffic)
            raise

    each_command(make, "discard", use)
