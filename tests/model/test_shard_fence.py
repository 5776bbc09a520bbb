"""Model checking of the fence: processes with different settings, moves, and crashes at any point.

At every moment a limit is defined in one shard at most, so it is granted in one. However often it
moves, no more units are granted than its burst, for each key. In the end each process finds it in
the same shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from celery_throttle import ConfigurationError, Limiter, StoreError
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.shards import HOME, OtherShardError
from celery_throttle.operations.author import Author
from celery_throttle.operations.define import define, register_missing
from celery_throttle.operations.plan import Plan, StoreCall
from celery_throttle.operations.shards import (
    ShardIdentity,
    begin_move,
    end_move,
    enter,
    hand_over,
    leave,
)
from tests.shards import HOME_KEYS, home_store_of, keys_of, shard_limiter
from tests.sizes import WHOLE

pytestmark = pytest.mark.thorough

SHARDS = (HOME, "mail", "erp")
PROCESSES = range(3)
NAME = "api"
REF = LimitRef(NAME, None)
AUTHOR = Author.of()

#: What must be seen, or its laws are not tested.
RARE = {
    *("register_missing", "define", "refused", "refused on the way", "old answer"),
    *("moved", "is there", "crashed", "resumed move", "lost", "two at the end", "gave up"),
    *("took", "took after a move", "refused after a move"),
}

_processes = st.sampled_from(PROCESSES)
_shards = st.sampled_from(SHARDS)
_calls_made = st.integers(1, 6)
_rarely = st.sampled_from([False] * 5 + [True])

_OPERATIONS: dict[str, Callable[[Any], Plan[None]]] = {
    "register": lambda context: register_missing(context, [REF]),
    "define": lambda context: define(context, REF, "7/h burst 7"),
}

_COUNT_DEFINED = """
local count = 0
for _, key in ipairs(KEYS) do
  count = count + redis.call('HEXISTS', key, ARGV[1])
end
return count
"""


class Fence(RuleBasedStateMachine):
    """Processes that propose a shard each, and make one call after the other."""

    def __init__(self, limiters: dict[str, Limiter], client: Any, seen: Counter[str]) -> None:
        super().__init__()
        self.limiters, self.client, self.seen = limiters, client, seen
        client.flushdb()
        #: Where each process looks for the limit: its settings, and what it has learned.
        self.shards = dict(zip(PROCESSES, SHARDS, strict=True))
        #: The plan that each process carries out, with its limiter, its next call, and the number
        #: of moves when that was answered last.
        self.plans: dict[int, tuple[Plan[Any], Limiter, Any]] = {}
        self.asked: dict[int, int] = {}
        #: A move that is carried out, and its next call.
        self.move: Any = None
        self.move_call: Any = None
        self.moves = 0
        #: Units that were granted, by key; the home shard has not lost its data before.
        self.granted = Counter[str | None]()
        self.was_lost = False
        #: Whether the home shard has lost its data, and the heartbeats that are under way.
        self.is_lost = False
        self.repeats: dict[str, tuple[Any, Any]] = {}

    @rule(process=_processes, operation=st.sampled_from(["register", "define"]), calls=_calls_made)
    def advance(self, process: int, operation: str, calls: int) -> None:
        """Carry out the next calls of a process; if it makes none, begin an operation."""
        for _ in range(calls):
            self._advance(process, operation)

    def _advance(self, process: int, operation: str) -> None:
        if process not in self.plans:
            limiter = self.limiters[self.shards[process]]
            self.plans[process] = _OPERATIONS[operation](limiter.plans), limiter, None
            self.asked[process] = self.moves
            self._resume(process, None)
            return
        _, limiter, step = self.plans[process]
        if isinstance(step, StoreCall):
            self.asked[process] = self.moves
            reply = step.store.run(step.call)
        else:
            reply = limiter.store.run(step)
        self._resume(process, reply)

    def _resume(self, process: int, reply: Any) -> None:
        plan, limiter, _ = self.plans.pop(process)
        try:
            self.plans[process] = plan, limiter, plan.send(reply)
        except StopIteration:
            self.seen[plan.__name__] += 1  # type: ignore[attr-defined]  # a generator
        except OtherShardError as error:
            self.seen["refused"] += 1
            if self.asked[process] < self.moves:
                self.seen["old answer"] += 1
            self.shards[process] = error.shard
        except StoreError:
            self.seen["refused on the way"] += 1

    @rule(process=_processes, key=st.sampled_from([None, "42"]), units=st.sampled_from([300, 1000]))
    def take(self, process: int, key: str | None, units: int) -> None:
        """Take as many units as a process can get where it looks for the limit."""
        if process in self.plans:
            return
        try:
            limiter = self.limiters[self.shards[process]]
            decision = limiter[LimitRef(NAME, key)].acquire_up_to(units)
        except OtherShardError as error:
            self.shards[process] = error.shard
        except StoreError:
            self.seen["refused on the way"] += 1
        else:
            self.granted[key] += int(decision.granted)
            self.seen["took" if decision.allowed else "refused"] += 1
            if self.seen["moved"]:
                self.seen[f"{'took' if decision.allowed else 'refused'} after a move"] += 1

    @invariant()
    def no_more_is_granted_than_the_burst(self) -> None:
        """An example ends within the time of one unit: 86 seconds."""
        assert self.was_lost or max(self.granted.values(), default=0) <= 1000 + 1

    @rule(process=_processes, happens=_rarely)
    def crash(self, process: int, *, happens: bool) -> None:
        """End a process; it starts again with its settings."""
        if happens:
            self.seen["crashed"] += process in self.plans
            self.plans.pop(process, None)
            self.shards[process] = SHARDS[process]

    @rule(happens=st.booleans(), restart=st.booleans())
    def lose_home(self, *, happens: bool, restart: bool) -> None:
        """The home shard loses its data. Calls of processes may be under way, or they restart."""
        if happens and not self.is_lost and self._count_defined(SHARDS[1:]):
            self.client.delete(HOME_KEYS.limits, HOME_KEYS.shards)
            self.is_lost = self.was_lost = True
            self.seen["lost"] += 1
            if restart:
                self.plans.clear()
                self.shards = dict(zip(PROCESSES, SHARDS, strict=True))

    @rule(shard=st.sampled_from(SHARDS[1:]), calls=_calls_made)
    def advance_repeat(self, shard: str, calls: int) -> None:
        """Carry out the next calls of the heartbeats of a shard."""
        for _ in range(calls):
            self._advance_repeat(shard)

    def _advance_repeat(self, shard: str) -> None:
        limiter = self.limiters[shard]
        if shard not in self.repeats:
            self.repeats[shard] = _calls(limiter, _repeat(limiter)), None
        plan, reply = self.repeats.pop(shard)
        try:
            own, call = plan.send(reply)
        except StopIteration:
            return
        if isinstance(call, StoreCall):
            reply = call.store.run(call.call)
        else:
            if call.script.name == "leave":
                self.seen["gave up"] += 1
            reply = own.store.run(call)
        self.repeats[shard] = plan, reply

    @rule(to=_shards, after_loss=_rarely)
    def advance_move(self, to: str, *, after_loss: bool) -> None:
        """Carry out the next call of a move; begin one if there is none."""
        if self.is_lost and not after_loss:
            return  # moves also end that two shards have the limit
        if self.move is None:
            self._begin_move(to)
            return
        limiter, call = self.move_call
        try:
            self.move_call = self.move.send(limiter.store.run(call))
        except StopIteration:
            self.move = None
            self.seen["moved"] += 1
        self.moves += 1

    @rule(happens=_rarely)
    def cut_off_move(self, *, happens: bool) -> None:
        """End the move after any of its calls."""
        if happens:
            self.move = None

    def _begin_move(self, to: str) -> None:
        """Begin a move, or go on with one that was cut off."""
        entry = self.client.hget(HOME_KEYS.shards, NAME)
        words = entry.decode().split() if entry else ["0", HOME]
        if len(words) > 2:
            to = words[2]
            self.seen["resumed move"] += 1
        self.move = self._steps(to)
        self.move_call = next(self.move)

    def _end_move(self) -> None:
        """End a move that was begun; without one, move the limit to the home shard."""
        self._begin_move(HOME)
        while self.move is not None:
            self.advance_move(HOME, after_loss=True)

    def _steps(self, to: str) -> Any:
        home, identity = self.limiters[HOME], ShardIdentity(to)
        try:
            move = yield from _calls(home, begin_move(HOME_KEYS, NAME, identity))
        except ConfigurationError:
            self.seen["is there"] += 1
            return
        old = self.limiters[move.source]
        left = yield from _calls(old, leave(old.plans, move, identity))
        new = self.limiters[to]
        yield from _calls(new, enter(new.plans, move, left, identity, AUTHOR))
        epoch = yield from _calls(home, end_move(HOME_KEYS, [NAME], identity))
        yield from _calls(old, hand_over(old.plans, NAME, epoch, identity))

    @invariant()
    def one_shard_has_the_limit(self) -> None:
        found = self._count_defined(SHARDS)
        assert found <= (2 if self.is_lost else 1)

    def _count_defined(self, names: Sequence[str]) -> int:
        hashes = [keys_of(name).limits for name in names]
        return int(self.client.eval(_COUNT_DEFINED, len(hashes), *hashes, NAME))

    def teardown(self) -> None:
        """All processes find the limit in the same shard, once no move is under way.

        After a loss, once all heartbeats have repeated where the limit is.
        """
        self.repeats.clear()
        self.plans.clear()
        if self._count_defined(SHARDS) > 1:
            self.seen["two at the end"] += 1
        self._end_move()
        for limiter in [self.limiters[name] for name in SHARDS[1:]] * 2:
            limiter.run_plan(_repeat(limiter))
        self.is_lost = False
        self.one_shard_has_the_limit()
        self._end_move()
        for process in PROCESSES:
            for _ in SHARDS:
                try:
                    self.limiters[self.shards[process]][NAME].try_acquire(0.001)
                    break
                except OtherShardError as error:
                    self.shards[process] = error.shard
            else:
                pytest.fail(f"process {process} does not find the limit: {self.shards}")
        assert len(set(self.shards.values())) == 1
        self.one_shard_has_the_limit()


def _repeat(limiter: Limiter) -> Plan[None]:
    fence = limiter.plans.fence
    assert fence is not None
    return fence.repeat(limiter.plans, [NAME])


def _calls(limiter: Limiter, plan: Plan[Any]) -> Any:
    """Carry out a plan of a move; yield each call with its limiter."""
    reply: Any = None
    while True:
        try:
            reply = yield limiter, plan.send(reply)
        except StopIteration as end:  # noqa: PERF203  # the loop is as long as the plan
            return end.value


def make_limiters(url: str) -> dict[str, Limiter]:
    limits = {NAME: "1000/d burst 1000"}
    return {name: shard_limiter(url, name, limits) for name in SHARDS}


@pytest.mark.timeout(600)
def test_a_limit_is_in_one_shard_whatever_happens(redis_url: str, client: Any) -> None:
    limiters, seen = make_limiters(redis_url), Counter[str]()

    @seed(0)
    def make() -> Fence:
        return Fence(limiters, client, seen)

    run_state_machine_as_test(
        make,  # type: ignore[arg-type]  # anything that makes one will do
        settings=settings(
            max_examples=800 if WHOLE else 200,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            print_blob=True,
        ),
    )
    client.flushdb()
    for limiter in limiters.values():
        limiter.store.close()
        home_store_of(limiter).close()
    assert set(seen) >= RARE
