"""The scripts on the server against the reference, step by step, and what holds for both.

The limits reach as far as definitions may: intervals of no whole number of microseconds, and
amounts up to the last that the scripts count exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

import pytest
import redis
from hypothesis import HealthCheck, Phase, assume, example, given, settings
from hypothesis import strategies as st

from celery_throttle import reference
from celery_throttle.decision import Decision
from celery_throttle.limiter import Limiter
from celery_throttle.limits import ALGORITHMS, MAX_EXACT, MAX_PERIOD_US, MAX_UNITS, Limit, Rate
from celery_throttle.plans import Want
from celery_throttle.reference import FARTHEST, Local
from celery_throttle.scope import LimitRef
from celery_throttle.testing import ManualClock

START = 1_700_000_000_000_000
LATEST = 4_000_000_000_000_000  # in 2096; the longest times from there on are still exact
SECOND = 1_000_000
DAY = 86_400 * SECOND
API = LimitRef("api", None)
KEY = LimitRef("api", "key")  # never defined itself, so its state is converted when it is read

bounded = settings(
    max_examples=100,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

# Most of these emit a unit in no whole number of microseconds.
ODD_RATES = (
    Rate(3, SECOND),
    Rate(7, DAY),
    Rate(1_000_003, SECOND),
    Rate(999_999_937, DAY),
    Rate(3, 2**44),
    Rate(100, SECOND),
    Rate(1, 1),
    Rate(MAX_UNITS, 1),
    Rate(1, MAX_PERIOD_US),
)
rates = st.sampled_from(ODD_RATES) | st.builds(
    Rate, st.integers(1, MAX_UNITS), st.integers(1, MAX_PERIOD_US)
)


@st.composite
def limits(draw: st.DrawFn) -> Limit:
    rate = draw(rates)
    most = min(MAX_UNITS, MAX_EXACT // rate.interval[0])
    burst = draw(st.integers(1, min(5, most)) | st.integers(1, most) | st.just(most))
    return Limit(rate, burst, draw(st.sampled_from(ALGORITHMS)))


@dataclass(frozen=True)
class Step:
    """One step of a trace; what it amounts to depends on the limit it is played at.

    Attributes:
        do: "acquire" or "peek" a share (in thousandths) of the burst; "advance" the clock or step
            "back" by a share of ``span``, and by ``us`` microseconds; or "define".
        span: "interval", "full" (empty to full), "wait" (what the last refusal told), "none".
    """

    do: str
    share: int = 0
    span: str = "none"
    us: int = 0
    limit: Limit | None = None

    def cost(self, limit: Limit) -> int:
        return max(int(self.do == "acquire"), self.share * limit.burst // 1000)

    def time(self, limit: Limit, wait: int) -> int:
        p, q = limit.rate.interval
        spans = {"interval": -(-p // q), "full": limit.burst * p // q, "wait": wait, "none": 0}
        return max(0, self.share * spans[self.span] // 1000 + self.us)


shares = st.sampled_from([0, 1, 333, 500, 1000]) | st.integers(0, 1000)
acquires = st.builds(Step, st.just("acquire"), shares)
peeks = st.builds(Step, st.just("peek"), shares)
moves = st.builds(
    Step,
    st.just("advance"),
    shares,
    st.sampled_from(["interval", "full", "wait", "wait", "none"]),
    st.integers(-1, 1) | st.integers(0, 3000),
)
backs = st.builds(
    Step,
    st.just("back"),
    shares,
    st.sampled_from(["interval", "full", "none"]),
    st.sampled_from([1, 1000, FARTHEST, FARTHEST + 1, 3600 * SECOND]),
)
uses = acquires | moves | acquires | peeks


changes = st.builds(Step, st.just("define"), limit=limits())


def traces(steps: st.SearchStrategy[Step]) -> st.SearchStrategy[list[Step]]:
    # Without a least size most would have five steps, too few to fill a limit and see it refuse.
    return st.lists(steps, min_size=12, max_size=40)


steady = traces(uses)
unsteady = traces(uses | moves | backs)


@dataclass
class Sides:
    """One limit on the server and in the reference, at one time."""

    limiter: Limiter
    local: Local
    clock: ManualClock
    client: redis.Redis
    limit: Limit
    ref: LimitRef = API
    wait: int = 0  # microseconds, told by the last refusal

    def start(self, limit: Limit, ref: LimitRef = API) -> None:
        self.ref = ref
        self.client.flushdb()
        self.clock.now = START
        self.local = Local()
        self.wait = 0
        self.define(limit)

    def define(self, limit: Limit) -> None:
        self.limit = limit
        self.limiter.define("api", limit)
        self.local.define(API, limit, self.clock.now)

    def acquire(self, cost: int) -> Decision:
        return self._agreed(
            self.limiter[self.ref].acquire(cost),
            self.local.acquire({self.ref: cost}, self.clock.now),
        )

    def peek(self, cost: int) -> Decision:
        return self._agreed(
            self.limiter[self.ref].peek(cost), self.local.peek({self.ref: cost}, self.clock.now)
        )

    def play(self, step: Step) -> Decision | None:
        if step.do == "define":
            assert step.limit is not None
            self.define(step.limit)
        elif step.do == "advance":
            self.clock.now = min(LATEST, self.clock.now + step.time(self.limit, self.wait))
        elif step.do == "back":
            self.clock.now = max(0, self.clock.now - step.time(self.limit, self.wait))
        elif step.do == "peek":
            return self.peek(step.cost(self.limit))
        else:
            return self.acquire(step.cost(self.limit))
        return None

    def _agreed(self, server: Decision, local: Decision) -> Decision:
        assert server == local
        assert server.retry_after is not None
        if not server:
            self.wait = round(server.retry_after * SECOND)
        return server


@pytest.fixture
def sides(redis_url: str) -> Iterator[Sides]:
    clock = ManualClock(START)
    limiter = Limiter(redis_url, clock=clock)
    with redis.Redis.from_url(redis_url) as client:
        yield Sides(limiter, Local(), clock, client, Limit(Rate(1, 1)))
    limiter.store.close()


@bounded
@given(limit=limits(), trace=unsteady)
def test_server_and_reference_agree(sides: Sides, limit: Limit, trace: list[Step]) -> None:
    sides.start(limit)
    for step in trace:
        sides.play(step)
        sides.peek(0)


@pytest.mark.parametrize("ref", [API, KEY])
@bounded
@given(limit=limits(), trace=traces(uses | backs | changes))
@example(  # the largest that can be written: sums of it must not leave what a double holds
    limit=Limit.parse("3/s burst 1000000000"),
    trace=[
        Step("acquire", 1),
        Step("define", limit=Limit(Rate(3, 2**44), 256)),
        Step("advance", us=1),
        Step("acquire", 1000),
    ],
)
def test_server_and_reference_agree_while_the_limit_changes(
    sides: Sides, ref: LimitRef, limit: Limit, trace: list[Step]
) -> None:
    sides.start(limit, ref)
    for step in trace:
        sides.play(step)
        sides.peek(0)


@bounded
@given(limit=limits(), trace=steady)
def test_a_wait_is_exact(sides: Sides, limit: Limit, trace: list[Step]) -> None:
    sides.start(limit)
    for step in trace:
        decision = sides.play(step)
        if decision is not None and not decision:
            now, cost, wait = sides.clock.now, step.cost(limit), sides.wait
            assert wait >= 1
            sides.clock.now = now + wait - 1
            assert not sides.peek(cost)
            sides.clock.now = now + wait
            assert sides.peek(cost)
            sides.clock.now = now


# The rule for who waits: come back after retry_after, and it passes, if nobody else took units.
@pytest.mark.parametrize("ref", [API, KEY])
@bounded
@given(limit=limits(), trace=traces(uses | backs | changes))
@example(
    limit=Limit.parse("1/h"), trace=[Step("acquire"), Step("define", limit=Limit.parse("100/s"))]
)
@example(
    limit=Limit.parse("100/s burst 100"),
    trace=[Step("acquire", 1000), Step("define", limit=Limit.parse("100/s"))],
)
@example(limit=Limit.parse("1/s"), trace=[Step("acquire"), Step("back", us=3600 * SECOND)])
def test_a_wait_holds_after_a_change_and_a_clock_that_stepped_back(
    sides: Sides, ref: LimitRef, limit: Limit, trace: list[Step]
) -> None:
    sides.start(limit, ref)
    for step in trace:
        sides.play(step)
    refusal = sides.acquire(sides.limit.burst)
    if not refusal:
        assume(sides.clock.now + sides.wait <= MAX_EXACT)  # the year 2112
        sides.clock.now += sides.wait
        assert sides.acquire(sides.limit.burst)


@bounded
@given(limit=limits(), trace=unsteady)
def test_never_over(sides: Sides, limit: Limit, trace: list[Step]) -> None:
    """In every window, by a clock that never steps back: at most burst + rate x window."""
    sides.start(limit)
    true_time = 0
    admitted: list[tuple[int, int]] = []
    for step in trace:
        before = sides.clock.now
        decision = sides.play(step)
        if step.do == "advance":
            true_time += sides.clock.now - before
        elif step.do == "acquire" and decision:
            admitted.append((true_time, step.cost(limit)))
    p, q = limit.rate.interval
    for first, (began, _) in enumerate(admitted):
        totals = accumulate(cost for _, cost in admitted[first:])
        for (time, _), total in zip(admitted[first:], totals, strict=True):
            assert (total - limit.burst) * p <= (time - began) * q


@bounded
@given(limit=limits(), trace=unsteady)
def test_both_algorithms_decide_alike(sides: Sides, limit: Limit, trace: list[Step]) -> None:
    sides.start(limit)
    for algorithm in ALGORITHMS:
        sides.limiter.define(algorithm, replace(limit, algorithm=algorithm))
    one, other = (sides.limiter[algorithm] for algorithm in ALGORITHMS)
    for step in trace:
        sides.play(step)
        if step.do in ("acquire", "peek"):
            method = step.do
            left = getattr(one, method)(step.cost(limit))
            right = getattr(other, method)(step.cost(limit))
            assert left == replace(right, bound_by=left.bound_by)


@bounded
@given(
    several=st.lists(limits(), min_size=2, max_size=4),
    trace=st.lists(
        st.tuples(st.integers(1, 6), st.integers(0, 15), st.sampled_from(["advance", "take"])),
        max_size=30,
    ),
)
def test_several_limits_agree(
    sides: Sides, several: list[Limit], trace: list[tuple[int, int, str]]
) -> None:
    sides.start(several[0])
    refs = [LimitRef(f"limit{number}", "key") for number in range(len(several))]
    for ref, limit in zip(refs, several, strict=True):
        sides.limiter.define(ref.name, limit, key=ref.key)
        sides.local.define(ref, limit, START)
    for amount, chosen, do in trace:
        asked = [index for index in range(len(several)) if chosen & 1 << index]
        if do == "advance":
            p, q = several[chosen % len(several)].rate.interval
            sides.clock.now += amount * p // (2 * q)
        elif asked:
            cost = min(amount, *(several[index].burst for index in asked))
            costs = {refs[index]: cost for index in asked}
            server = sides.limiter.acquire(list(costs), cost)
            assert server == sides.local.acquire(costs, sides.clock.now)
        for ref in refs:
            server = sides.limiter.peek([ref], 0)
            assert server == sides.local.peek({ref: 0}, sides.clock.now)


@bounded
@given(
    limit=limits(),
    uses=st.tuples(acquires, acquires),
    block=st.tuples(st.integers(1, 50), st.integers(0, FARTHEST)),
)
def test_a_block_books_no_farther_than_it_may(
    sides: Sides, limit: Limit, uses: tuple[Step, Step], block: tuple[int, int]
) -> None:
    sides.start(limit)
    sides.acquire(uses[0].cost(limit))
    before = sides.local.peek({API: 0}, START)
    units = uses[1].cost(limit)
    times, ahead = block
    p, q = limit.rate.interval
    wait = sides.local.peek({API: units}, START).retry_after
    assert wait is not None
    call = sides.limiter.plans.gate_call([Want([API], units, times)], ahead)
    reply = sides.limiter.store.run(call)[0]
    if round(wait * 1_000_000) > ahead:
        assert reply[0] == 0
        sides.peek(0)
        return
    if wait > 0:  # its own slot lies ahead: that one and no more
        assert reply == [1, 1, 0, round(wait * 1_000_000), units * p, q]
        return
    taking, granted, at_once, later, step, per_us = reply
    assert (taking, step, per_us) == (1, units * p, q)
    assert at_once == min(times, before.remaining // units)
    definition = sides.local._definitions[API]
    now_used = reference.used(definition, sides.local._states[API], START)
    used = now_used + granted * units * p
    farthest = limit.burst * p + ahead * q
    assert used <= farthest
    assert granted == times or used + units * p > farthest
    if granted > at_once:
        over = now_used + (at_once + 1) * units * p - limit.burst * p
        assert later == -(-over // q)
    # All of it is remembered: what is booked ahead is not taken for a clock that stepped back.
    sides.local._states[API] = reference.take(definition, now_used, granted * units, START)
    sides.peek(0)
