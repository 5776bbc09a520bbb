"""Fair queueing: which of the lines at one limit is served next, with the time as an argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from celery_throttle import LimitValueError, UnknownLimitError
from celery_throttle.limiter.limiter import apply_rules
from celery_throttle.limits.key import ItemLike, LimitRef
from celery_throttle.limits.rules.rules import Rules
from celery_throttle.store.script import Call, script
from tests.ends import MakeEnd
from tests.protocol import RANK, SECOND, Protocol
from tests.sizes import examples

LIMITS = {
    "api": "1000/s burst 1000",
    "other": "1000/s burst 1000",
    "plan": "100000/s burst 100000",
    "tenant": "100000/s burst 100000",
    "slow": "1/h",
}

#: How a score in a waiting list goes on after its rank, see ``waiting_lists.lua``.
PASS, STRIDE = 2**17, 110880


class Turns(Protocol):
    """Lines by tenant, that wait although there is room, as no process is free."""

    def join(self, tenant: str, tasks: int = 1, *, rank: int = 3, at: str = "api") -> None:
        for _ in range(tasks):
            self.parked = getattr(self, "parked", 0) + 1
            task = f"{tenant} {self.parked}"
            self.park(task, [at, ("tenant", tenant)], rank=rank, may_run=False)

    def serve(self, tasks: int) -> list[str]:
        """Return the tenants that are served."""
        rows = self.claim(room=tasks)
        self.claim(room=0, settled=[row.token for row in rows])
        self.check()
        return [row.id.split()[0] for row in rows]

    def weigh(self, weights: Mapping[str, int]) -> None:
        for tenant, weight in weights.items():
            self.limiter["tenant", tenant].define(weight=weight)


@pytest.fixture
def turns(any_server_url: str) -> Iterator[Turns]:
    turns = Turns(any_server_url, LIMITS)
    yield turns
    turns.close()


# Turns.


def test_lines_of_one_weight_are_served_first_come_first(turns: Turns) -> None:
    names = [f"t{number}" for number in range(40)]
    for name in names:
        turns.join(name, 3)
    assert turns.serve(100) == (names * 3)[:100]


def test_one_that_joins_comes_after_those_that_are_there(turns: Turns) -> None:
    for name in "abcde":
        turns.join(name, 4)
    assert turns.serve(2) == ["a", "b"]
    turns.join("new", 4)
    assert turns.serve(8) == ["c", "d", "e", "a", "b", "new", "c", "d"]


def test_one_that_leaves_and_joins_again_gains_nothing(turns: Turns) -> None:
    for name in ("a", "b", "c"):
        turns.join(name, 30)
    turns.join("quick")
    served: Counter[str] = Counter()
    for _ in range(40):
        (name,) = turns.serve(1)
        served[name] += 1
        if name == "quick":
            turns.join("quick")
    assert max(served.values()) - min(served.values()) <= 1


def test_one_that_is_withdrawn_and_joins_again_gains_nothing(turns: Turns) -> None:
    for name in ("a", "b", "c"):
        turns.join(name, 30)
    served: Counter[str] = Counter()
    for _ in range(20):
        turns.join("quick")
        served.update(turns.serve(1))
        turns.withdraw("w", f"quick {turns.parked}")
        turns.claim(room=0, settled=range(1, turns.tokens["w"] + 1))
    assert served["quick"] <= 5


def test_one_that_comes_from_another_limit_waits_for_one_turn(turns: Turns) -> None:
    turns.limiter["other"].pause(1)
    for name in ("a", "b", "c"):
        turns.join(name, 9)
    turns.park("both 0", ["other", "api"], may_run=False)
    turns.park("both 1", ["other", "api"], may_run=False)
    turns.serve(7)
    turns.limiter["other"].reset()
    turns.limiter["api"].pause(1)
    assert turns.serve(9) == []  # now it waits where the others do
    turns.limiter["api"].reset()
    assert "both" in turns.serve(4)


def test_one_whose_claim_goes_back_waits_for_one_turn(turns: Turns) -> None:
    for name in ("a", "b"):
        turns.join(name, 9)
    assert turns.serve(3) == ["a", "b", "a"]
    rows = turns.claim(room=1)
    turns.back("w", "own", rows[0].token)
    assert sorted(turns.serve(2)) == ["a", "b"]


# Weights.


@settings(max_examples=examples(40))
@example(weights=[94, 62, 80], serves=[1, 49])
@given(
    weights=st.lists(st.integers(1, 100), min_size=2, max_size=8),
    serves=st.lists(st.integers(1, 60), min_size=1, max_size=4),
)
def test_no_two_get_apart_by_more_than_a_turn_of_each(
    server_url: str, weights: list[int], serves: list[int]
) -> None:
    turns = Turns(server_url, LIMITS)
    turns.client.flushdb()
    turns.limiter.register()
    names = {f"t{number}": weight for number, weight in enumerate(weights)}
    turns.weigh(names)
    for name in names:
        turns.join(name, sum(serves))
    served: Counter[str] = Counter()
    for count in serves:
        served.update(turns.serve(count))
        # Of a weight that does not divide the stride, a turn is up to a thousandth shorter.
        rounds = {name: served[name] / weight for name, weight in names.items()}
        for one, other in combinations(names, 2):
            most = 1 / names[one] + 1 / names[other] + max(rounds.values()) / 1000
            assert abs(rounds[one] - rounds[other]) <= most + 1e-9
    turns.client.flushdb()
    turns.close()


def test_shares_over_many_turns(turns: Turns) -> None:
    weights = {"a": 1, "b": 2, "c": 3, "d": 7, "e": 97}
    turns.weigh(weights)
    for name in weights:
        turns.join(name, 600)
    served = Counter(turns.serve(550))
    for name, weight in weights.items():
        assert abs(served[name] - 550 * weight / sum(weights.values())) <= 2


def test_a_weight_is_that_of_any_limit_of_the_line_the_greatest(turns: Turns) -> None:
    turns.limiter["plan", "gold"].define(weight=3)
    turns.limiter["tenant", "a"].define(weight=2)
    for number in range(40):
        turns.park(f"a {number}", ["api", ("plan", "gold"), ("tenant", "a")], may_run=False)
        turns.park(f"b {number}", ["api", ("plan", "gold"), ("tenant", "b")], may_run=False)
        turns.park(f"c {number}", ["api", ("plan", "tin"), ("tenant", "c")], may_run=False)
    assert Counter(turns.serve(35)) == {"a": 15, "b": 15, "c": 5}


def test_a_weight_of_a_name_is_that_of_its_keys_that_have_none(turns: Turns) -> None:
    turns.limiter["tenant"].define(weight=4)
    turns.weigh({"plain": 1})
    for name in ("plain", "some"):
        turns.join(name, 30)
    assert abs(Counter(turns.serve(25))["some"] - 20) <= 1


def test_a_change_of_a_weight_is_in_force_at_the_next_turn(turns: Turns) -> None:
    turns.weigh({"a": 1, "b": 100})
    for name in ("a", "b"):
        turns.join(name, 60)
    turns.serve(20)
    turns.weigh({"a": 2, "b": 1})
    turns.serve(2)
    assert abs(Counter(turns.serve(30))["a"] - 20) <= 1
    turns.limiter["tenant", "a"].undefine()
    turns.serve(2)
    assert abs(Counter(turns.serve(30))["a"] - 15) <= 1


def test_one_of_great_weight_that_joins_waits_for_its_own_turn(turns: Turns) -> None:
    turns.weigh({"gold": 10})
    for name in ("a", "b"):
        turns.join(name, 60)
    turns.serve(3)
    turns.join("gold", 60)
    assert "gold" in turns.serve(3)
    assert abs(Counter(turns.serve(36))["gold"] - 30) <= 2


def test_those_of_great_weight_do_not_starve_others(turns: Turns) -> None:
    turns.weigh(dict.fromkeys(("gold", "more"), 100))
    for name in ("gold", "more"):
        turns.join(name, 300)
    turns.serve(5)
    turns.join("small")
    assert "small" in turns.serve(203)


def test_a_weight_ends_by_itself(turns: Turns) -> None:
    turns.limiter["tenant"].define(weight=2)
    turns.limiter["tenant", "a"].define(weight=5, lasts=10)
    for tenant in "ab":
        turns.join(tenant, 300)
    assert Counter(turns.serve(70)) == {"a": 50, "b": 20}
    turns.now += 10 * SECOND - 1
    assert Counter(turns.serve(70)) == {"a": 50, "b": 20}
    turns.now += 1
    assert abs(Counter(turns.serve(100))["a"] - 50) <= 2


def test_a_weight_that_ends_is_followed_by_that_of_the_rules(turns: Turns) -> None:
    apply_rules(turns.limiter, Rules({}, {LimitRef("tenant", "a"): 3}), "limits.toml")
    turns.limiter["tenant", "a"].define(weight=9, lasts=10)
    turns.now += 10 * SECOND
    for tenant in "ab":
        turns.join(tenant, 100)
    assert Counter(turns.serve(40)) == {"a": 30, "b": 10}


def test_a_weight_says_nothing_of_limits(turns: Turns) -> None:
    turns.weigh({"gold": 3})
    turns.limiter["tenant"].define("7/s burst 70")
    assert turns.limiter["tenant", "gold"].peek().burst == 70
    turns.limiter["tenant", "gold"].define("9/s burst 90")
    turns.limiter["tenant", "gold"].define("8/s burst 80", weight=5)
    assert turns.limiter["tenant", "gold"].peek().burst == 80
    assert turns.client.hget("{throttle}:limits", "weight tenant:gold") == b"5 0 0"
    turns.limiter["tenant", "gold"].undefine()
    assert turns.limiter["tenant", "gold"].peek().burst == 70
    assert not turns.client.hexists("{throttle}:limits", "weight tenant:gold")


def test_workers_are_told_of_limits_not_of_weights(turns: Turns) -> None:
    turns.limiter["tenant", "gold"].define("9/s", weight=5)
    turns.limiter["api"].define(weight=2)
    keys = turns.keys
    names = [
        keys.membership,
        keys.limits,
        keys.quarantine,
        keys.temporary_queues,
        keys.consumed_queues,
        keys.changes,
        keys.worker_queues,
        keys.limits_with_keys,
    ]
    args: list[Any] = [turns.now, "w", SECOND, 1000, SECOND, SECOND, "", ""]
    _, _, _, _, *told = turns.store.run(Call(script("heartbeat"), names, args))
    assert {field.decode() for field in told[::2]} == {*LIMITS, "tenant:gold"}


def test_a_weight_that_cannot_be(turns: Turns, end_of: MakeEnd) -> None:
    end = end_of(turns.limiter)
    for weight in (0, 101, -1, 1.5, True, "3"):
        with pytest.raises(LimitValueError, match=r"'tenant:gold': weight .* from 1 to 100"):
            end["tenant", "gold"].define(weight=weight)
    with pytest.raises(
        LimitValueError, match="neither a limit nor a weight is given for 'tenant:gold'"
    ):
        end["tenant", "gold"].define()
    with pytest.raises(UnknownLimitError, match="'nobody'"):
        end["nobody"].define(weight=3)
    with pytest.raises(UnknownLimitError, match="'nobody'"):
        end["nobody", "gold"].define(weight=3)
    assert not [key for key in turns.client.hkeys("{throttle}:limits") if b"weight" in key]


# Priority.


def test_a_line_whose_first_task_is_of_better_priority_is_served_before(turns: Turns) -> None:
    turns.weigh({"bulk": 100})
    turns.join("bulk", 5, rank=9)
    turns.join("a", 3, rank=5)
    turns.join("urgent", 2, rank=0)
    turns.join("b", 3, rank=5)
    assert turns.serve(4) == ["urgent", "urgent", "a", "b"]
    turns.join("last", rank=0)
    assert turns.serve(9) == ["last", "a", "b", "a", "b", "bulk", "bulk", "bulk", "bulk"]


def test_a_line_is_of_the_rank_of_its_first_task(turns: Turns) -> None:
    for name in ("a", "b"):
        turns.join(name, 3, rank=5)
    turns.join("b", rank=0)
    assert turns.serve(2) == ["b", "a"]  # b has had a turn, and that of its other tasks comes next
    turns.join("c", 3, rank=5)
    turns.join("c", rank=2)
    turns.withdraw("w", f"c {turns.parked}")
    turns.check()
    assert turns.serve(3) == ["b", "a", "c"]


def test_one_of_better_priority_does_not_wait_for_the_cost_of_others(turns: Turns) -> None:
    turns.limiter["api"].try_acquire(1000)
    turns.park("all", ["api"], cost=1000, rank=5)
    turns.park("one", ["api", "tenant"], rank=0)
    turns.now += 1_000
    assert [row.id for row in turns.claim()] == ["one"]
    turns.check()


def test_one_that_expires_makes_way_for_the_next_by_rank(turns: Turns) -> None:
    requirements: Sequence[ItemLike] = ["api", ("tenant", "a")]
    turns.park("a 0", requirements, rank=0, expires=turns.now + 1, may_run=False)
    turns.park("a 1", requirements, rank=9, may_run=False)
    turns.join("b", 2, rank=5)
    turns.now += 1
    assert [row.id for row in turns.claim(room=2)] == ["a 0", "b 1"]
    turns.check()
    assert turns.serve(2) == ["b", "a"]


def test_what_goes_back_to_its_line_is_of_its_rank_there(turns: Turns) -> None:
    turns.join("a", rank=0)
    turns.join("a", rank=9)
    turns.join("b", rank=5)
    (row,) = turns.claim("dying")
    assert row.id == "a 1"
    turns.check()
    turns.back("dying", "own", row.token)
    turns.check()
    assert turns.serve(3) == ["a", "b", "a"]


def test_a_wait_is_not_expected_for_those_of_worse_priority(turns: Turns) -> None:
    turns.limiter["api"].define("10/s")
    turns.limiter["api"].try_acquire()
    for number in range(20):
        turns.join(f"bulk{number}", 2, rank=9)
    urgent = turns.park("urgent", ["api"], rank=0)
    assert urgent.expected == SECOND // 10
    bulk = turns.park("bulk", ["api", ("tenant", "bulk")], rank=9)
    assert bulk.expected > 2 * SECOND


# Many lines, and many turns.


def waiting(turns: Turns) -> str:
    (key,) = turns.client.keys("{throttle}:waiting:*")
    name: str = key.decode()
    return name


@pytest.mark.parametrize("rank", [3, 255])
def test_turns_go_on_after_the_last_pass(turns: Turns, rank: int) -> None:
    turns.weigh({"b": 2})
    for name in "abc":
        turns.join(name, 60, rank=rank)
    turns.serve(1)
    end = (rank + 1) * RANK
    for line, place in turns.client.zrange(waiting(turns), 0, -1, withscores=True):
        turns.client.zadd(waiting(turns), {line: end - 4 * STRIDE * PASS + place % RANK})
    served = []
    for number in range(10):
        served += turns.serve(4)
        turns.join(f"new{number}", rank=rank)
        served += turns.serve(5)
        assert f"new{number}" in served[-5:]
    found = Counter(served)
    assert abs(found["a"] - found["c"]) <= 1
    assert abs(found["b"] - 2 * found["a"]) <= 4
    scores = [place for _, place in turns.client.zrange(waiting(turns), 0, -1, withscores=True)]
    assert rank * RANK <= min(scores) <= max(scores) < rank * RANK + 20 * STRIDE * PASS


def test_a_line_alone_has_a_place_however_long_it_waits(turns: Turns) -> None:
    turns.join("a", 3)
    last = 4 * RANK - STRIDE * PASS - 1
    turns.client.zadd(waiting(turns), {turns.client.zrange(waiting(turns), 0, 0)[0]: last})
    assert turns.serve(2) == ["a", "a"]
    [(_, place)] = turns.client.zrange(waiting(turns), 0, -1, withscores=True)
    assert 3 * RANK <= place < 3 * RANK + 3 * STRIDE * PASS


@pytest.mark.parametrize("rank", [0, 255])
def test_ranks_have_bounds(turns: Turns, rank: int) -> None:
    for name in "ab":
        turns.join(name, 3, rank=rank)
    turns.join("between", rank=100)
    assert (turns.serve(7)[0] == "between") == (rank == 255)


def test_a_claim_makes_as_many_calls_however_many_lines_wait(turns: Turns) -> None:
    calls = []
    for count in (30, 3_000):
        for number in range(count):
            turns.join(f"{count}x{number}", 2)
        turns.client.config_resetstat()
        turns.claim(room=1)
        stats = turns.client.info("commandstats")
        calls.append(sum(about["calls"] for about in stats.values()))
    assert calls[1] <= calls[0]


def test_a_waiting_list_that_was_lost_is_made_anew_by_rank(turns: Turns) -> None:
    turns.join("bulk", 2, rank=9)
    turns.join("urgent", 2, rank=0)
    turns.client.delete(waiting(turns))
    turns.claim()
    assert turns.serve(3) == ["urgent", "bulk", "bulk"]


def test_who_needs_one_of_two_limits_keeps_all_that_the_others_leave(any_server_url: str) -> None:
    """The other limit is saturated: who needs both has one unit of it in ten of the shared one."""
    lines = Protocol(any_server_url, {"shared": "100/s", "scarce": "10/s"})
    for number in range(200):
        lines.park(f"both {number}", ["shared", "scarce"], may_run=False)
    for number in range(2000):
        lines.park(f"alone {number}", ["shared"], may_run=False)
    lines.now += SECOND  # what they have to begin with is used
    lines.drain(1.0, step=5_000, ahead=20_000)
    began = lines.now
    taken = lines.drain(10.0, step=5_000, ahead=20_000)
    alone = sum(began <= at < began + 10 * SECOND and "alone" in task for at, task in taken)
    assert alone >= 0.99 * 90 * 10
    assert sum("both" in task for _, task in taken) > 0.7 * 10 * 10
    lines.check()
    lines.close()
