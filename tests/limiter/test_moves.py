"""Moves of limits between shards: never over, and nothing is lost, whenever they are killed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest
import redis

from celery_throttle import ConfigurationError, Limiter, StoreError, UnknownLimitError
from celery_throttle.limiter.limiter import apply_rules
from celery_throttle.limiter.moves import LimitMove, MovePreview
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.rules.reader import read_rules
from celery_throttle.operations.author import Author
from celery_throttle.operations.plan import Plan, StoreCall
from celery_throttle.testing import ManualClock
from tests.protocol import START, Protocol
from tests.servers.server import Server
from tests.shards import HOME_KEYS, keys_of, stores_of

SHARDS: dict[str, Any] = {
    "mail": {"limits": ["mail", "news"]},
    "erp": {"limits": ["erp"]},
    "tenants": {"limits": ["tenant"], "by_key": 2},
}
LIMITS = {
    "mail": "10/m burst 10",
    "news": "5/m",
    "erp": "5/m",
    "slots": "2 at once",
    "tenant": "5/m",
}
KEYS = HOME_KEYS, keys_of("mail"), keys_of("erp")

MakeLimiter = Callable[..., Limiter]


@pytest.fixture
def make(redis_url: str) -> Iterator[MakeLimiter]:
    made: list[Limiter] = []

    def make(
        mail: str = LIMITS["mail"],
        shards: Any = SHARDS,
        limits: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Limiter:
        limits = {**LIMITS, "mail": mail, **(limits or {})}
        made.append(Limiter(redis_url, limits, shards=shards, timeout=30, **options))
        return made[-1]

    yield make
    for limiter in made:
        for store in stores_of(limiter):
            store.close()


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


METERS = ["gcra", "token-bucket", "leaky-bucket"]
WINDOWS = ["fixed-window", "sliding-log", "sliding-window"]


def text_of(algorithm: str) -> str:
    return f"10/m using {algorithm}" if algorithm in WINDOWS else f"10/m burst 10 using {algorithm}"


@pytest.mark.parametrize("algorithm", [*METERS, *WINDOWS])
@pytest.mark.parametrize("key", [None, 42])
def test_a_limit_begins_used_up(make: MakeLimiter, algorithm: str, key: int | None) -> None:
    clock = ManualClock(START)
    limiter, other = make(text_of(algorithm), clock=clock), make(text_of(algorithm), clock=clock)
    assert limiter[LimitRef("mail", None if key is None else str(key))].acquire(10)
    limiter.move_to_shard("mail", "erp")
    for each in (limiter, other):
        assert not each["mail", key].try_acquire() if key else not each["mail"].try_acquire()
        assert not each["mail", 7].try_acquire()  # a key that was not used
        assert each["mail", 7].peek().remaining == 0
    granted = 0
    while clock.now < START + 60_000_000:
        granted += other["mail", 7].try_acquire().allowed
        clock.advance(0.5)
    assert 9 <= granted <= 10 if algorithm in METERS else granted <= 10
    clock.advance(121)
    assert other["mail", 7].peek().remaining == 10
    assert other["mail", 8].acquire(10)


@pytest.mark.parametrize("new", ["10/m burst 10", "1000/s burst 1000", "10/d burst 10"])
@pytest.mark.parametrize("key", [None, "7"])
def test_a_new_definition_gives_no_burst_after_a_move(
    make: MakeLimiter, new: str, key: str | None
) -> None:
    clock = ManualClock(START)
    limiter = make(clock=clock)
    limiter["mail"].acquire(10)
    limiter.move_to_shard("mail", "erp")
    clock.advance(1)
    limiter[LimitRef("mail", key)].define(new)
    assert not limiter["mail", 7].try_acquire(2)
    limiter[LimitRef("mail", key)].undefine()
    assert not limiter["mail", 7].try_acquire(2)
    clock.advance(200)
    limiter[LimitRef("mail", key)].define(new)
    assert limiter["mail", 7].acquire(10)


def test_a_definition_that_ends_after_a_move_gives_no_burst(make: MakeLimiter) -> None:
    clock = ManualClock(START)
    limiter = make("10/d burst 10", clock=clock)
    limiter["mail", 7].define("20/m burst 20", lasts=10)
    limiter.move_to_shard("mail", "erp")
    clock.advance(9)
    assert limiter["mail", 7].peek().remaining == 2  # of the definition: one in three seconds
    clock.advance(2)
    assert not limiter["mail", 7].try_acquire()


def test_what_was_in_the_shard_before_does_not_count_again(make: MakeLimiter) -> None:
    clock = ManualClock(START)
    limiter = make("10/d burst 10", clock=clock)
    limiter["mail", 7].acquire(3)
    limiter.move_to_shard("mail", "erp")
    clock.advance(86400 / 10 * 4.1)
    assert limiter["mail", 7].peek().remaining == 4
    limiter.move_to_shard("mail", "mail")
    assert limiter["mail", 7].peek().remaining == 0
    clock.advance(86400 / 10 * 2.1)
    assert limiter["mail", 7].peek().remaining == 2


def test_definitions_weights_and_pauses_come_along(make: MakeLimiter, client: redis.Redis) -> None:
    limiter = make()
    limiter["mail"].define("20/m burst 20", weight=3, reason="more")
    limiter["mail", 42].define("30/m burst 30", lasts=1000)
    limiter["mail", 43].define(weight=5)
    limiter["mail"].pause(500, reason="maintenance")
    limiter["mail", 44].pause(None)
    rules = '[limits]\n"mail:45" = "8/h burst 8"'
    assert apply_rules(limiter, read_rules(rules, "rules.toml", limiter.limits), "rules.toml")
    limiter.move_to_shard("mail", "erp", reason="room", by="ann")
    for each in (limiter, make()):
        status = each["mail"].status()
        assert (status.clauses, status.weight) == (("20/m burst 20",), 3)
        assert 400 < status.pauses[0].seconds <= 500
        assert status.pauses[0].author == Author.of(reason="maintenance")
        assert (status.paused_keys, status.own_keys) == (1, 3)
        assert each["mail", 42].peek().burst == 30
        assert each["mail", 43].status().weight == 5
        assert each["mail", 45].peek().burst == 8
        assert each["mail", 44].peek().paused
    limiter["mail", 44].resume()
    limiter["mail"].resume()
    limiter.move_to_shard("mail", "mail")
    assert not limiter["mail"].status().pauses  # none is left from before
    change = next(change for change in limiter.changes() if change.action == "shard")
    assert (change.limit, change.old, change.new) == ("mail", "erp", "mail")
    assert not any(client.hexists(keys.shards, "@left mail") for keys in KEYS)


def test_to_the_home_shard_and_back(make: MakeLimiter, client: redis.Redis) -> None:
    limiter = make()
    limiter["mail"].define("20/m burst 20")
    for shard in ("home", "erp", "home", "mail"):
        limiter.move_to_shard("mail", shard)
        keys = HOME_KEYS if shard == "home" else keys_of(shard)
        assert client.hexists(keys.limits, "mail")
        assert make()["mail"].peek().burst == 20
    assert make(shards={"mail": {"limits": ["mail"]}})["mail"].peek().burst == 20


def test_slots_in_use_are_awaited(make: MakeLimiter) -> None:
    clock = ManualClock(START)
    limiter = make(clock=clock)
    slots = [limiter["slots"].slot(lease=20), limiter["slots", 42].slot(lease=30)]
    for slot in slots:
        slot.__enter__()
    mover, seen = make(clock=clock), list[bool]()
    plan = move_plan(mover, "slots")
    step = next(plan)
    while step is not None:
        with suppress(StoreError):  # it is being moved
            seen.append(limiter["slots", 43].peek().allowed)
        step = advance(mover, plan, step)
    assert clock.now - START >= 30_000_000  # their leases have ended
    assert True not in seen[-20:]
    other = make(clock=clock)
    clock.advance(10)  # the pause of the move has ended
    with other["slots"].slot(), other["slots"].slot(), other["slots", 42].slot():
        assert not other["slots"].peek()
    for slot in slots:
        slot.__exit__(None, None, None)


def test_a_move_that_waits_for_slots_can_be_given_up(make: MakeLimiter) -> None:
    """The limit goes on where it is, and may change, or move to another shard."""
    clock = ManualClock(START)
    limiter, mover = make(clock=clock), make(clock=clock)
    with limiter["slots"].slot():
        plan = move_plan(mover, "slots")
        step = next(plan)
        while isinstance(step, StoreCall):
            step = advance(mover, plan, step)
        plan.close()
        clock.advance(10)
        limiter["slots"].define("3 at once")
        make(clock=clock)["slots"].pause(1)
    limiter.move_to_shard("slots", "mail")
    clock.advance(10)  # the pause of the move has ended
    with make(clock=clock)["slots"].slot():
        assert limiter["slots"].peek().remaining == 2


def move_plan(limiter: Limiter, *names: str, shard: str = "erp") -> Plan[None]:
    assert limiter.parts is not None
    return LimitMove(limiter.parts, names, shard).run(Author.of())


def advance(limiter: Limiter, plan: Plan[None], step: Any) -> Any:
    """Carry out a step of a plan; return the next one, or None at the end."""
    reply = None
    if isinstance(step, StoreCall):
        reply = step.store.run(step.call)
    else:
        assert limiter.clock is not None
        limiter.clock.advance(step.seconds)
    with suppress(StopIteration):
        return plan.send(reply)
    return None


@pytest.mark.parametrize("source", ["mail", "home"])
def test_the_same_call_goes_on_after_a_crash_at_any_step(
    make: MakeLimiter, client: redis.Redis, source: str
) -> None:
    """Whatever processes do meanwhile, no more than the burst is granted, and nothing is lost."""
    name, steps, has_ended = {"mail": "mail", "home": "slots"}[source], 0, False
    while not has_ended:
        client.flushdb()
        clock, granted = ManualClock(START), Counter[str | None]()
        limits = {"mail": "10/d burst 10", "slots": "10/d burst 10"}
        user, plain = (make(limits=limits, clock=clock) for _ in range(2))
        user[name].define("20/d burst 20")
        user[name].pause(5)
        clock.advance(6)
        granted[None] += int(user[name].acquire(4).granted)

        killed = make(limits=limits, clock=clock)
        plan = move_plan(killed, name)
        step = next(plan)
        for _ in range(steps):
            step = advance(killed, plan, step)
            granted += take(name, 2, user, plain)
        has_ended = step is None
        steps += 1
        mover = make(limits=limits, clock=clock)
        mover.move_to_shard(name, "erp")
        users = user, plain, mover, make(limits=limits, clock=clock)
        granted += take(name, 20, *users)
        assert max(granted.values()) <= 20
        assert {each[name].peek().burst for each in users} == {20}
        places = [client.hexists(keys.limits, name) for keys in KEYS]
        assert places == [False, False, True]
        clock.advance(2 * 86400)
        assert {each[name, 42].peek().remaining for each in users} == {20}
    assert steps > 10


@pytest.mark.parametrize("lost", ["mail", "erp"])
def test_the_same_call_ends_a_move_though_a_shard_has_lost_its_data(
    make: MakeLimiter, client: redis.Redis, lost: str
) -> None:
    """Whatever step the move had come to. An empty server is in its place."""
    steps, has_ended = 0, False
    while not has_ended:
        client.flushdb()
        clock = ManualClock(START)
        user, killed = make(clock=clock), make(clock=clock)
        assert user["mail"].acquire(4)
        plan = move_plan(killed, "mail")
        step = next(plan)
        for _ in range(steps):
            step = advance(killed, plan, step)
        has_ended = step is None
        steps += 1
        client.delete(*client.keys(f"{keys_of(lost).prefix}:*") or ["none"])
        make(clock=clock).move_to_shard("mail", "erp")
        if lost == "mail":  # a shard that has lost its data does not know what it has granted
            assert not any(take("mail", 20, user, make(clock=clock)).values())
        clock.advance(90)
        assert make(clock=clock)["mail"].acquire(10).granted == 10
        assert not client.hexists(HOME_KEYS.limits, "mail")
    assert steps > 10


def take(name: str, units: int, *users: Limiter) -> Counter[str | None]:
    """Take up to some units, without a key and with one; return what was granted."""
    granted = Counter[str | None]()
    for user in users:
        for key in (None, "42"):
            with suppress(StoreError):
                decision = user[LimitRef(name, key)].acquire_up_to(units)
                granted[key] += int(decision.granted)
    return granted


def test_a_limit_that_is_being_moved_moves_nowhere_else(make: MakeLimiter) -> None:
    limiter = make()
    limiter["mail"].acquire()
    plan = move_plan(limiter, "mail")
    step = next(plan)
    while not (isinstance(step, StoreCall) and "move" in step.call.args):
        step = advance(limiter, plan, step)
    advance(limiter, plan, step)
    with pytest.raises(ConfigurationError, match="'mail' cannot move to shard 'home': it moves to"):
        make().move_to_shard("mail", "home")
    make().move_to_shard("mail", "erp")
    make().move_to_shard("mail", "home")


def test_asyncio(make: MakeLimiter) -> None:
    limiter = make()
    limiter["mail"].acquire(10)

    async def move() -> None:
        await limiter.amove_to_shard("mail", "erp")
        await limiter.store.aclose()

    asyncio.run(move())
    assert not make()["mail"].try_acquire()


def test_a_preview_says_what_a_move_costs(make: MakeLimiter) -> None:
    limiter = make()
    limiter["mail"].acquire(4)
    with limiter["slots"].slot():
        mail, slots = limiter.preview_move(["mail", "slots"], "erp")
    assert mail == MovePreview("mail", "mail", waiting=0, slots_used=0, lost=6, pause=6.0)
    assert slots == MovePreview("slots", "home", waiting=0, slots_used=1, lost=0, pause=0.0)
    assert limiter["mail"].peek().remaining == 6


@pytest.mark.parametrize(
    ("names", "shard", "message"),
    [
        ("mail", "other", "no shard 'other'; allowed: 'home', 'mail', 'erp', 'tenants'"),
        ("mail", "tenants", "shard 'tenants' divides its limits by key"),
        ("tenant", "erp", "shard 'tenants' divides its limits by key"),
    ],
)
def test_moves_that_are_refused(make: MakeLimiter, names: str, shard: str, message: str) -> None:
    limiter = make()
    limiter.register()
    with pytest.raises(ConfigurationError, match=message):
        limiter.move_to_shard(names, shard)
    assert limiter["mail"].try_acquire()


def test_an_unknown_limit_does_not_move(make: MakeLimiter) -> None:
    with pytest.raises(UnknownLimitError):
        make().move_to_shard("nowhere", "erp")


@pytest.mark.parametrize("url", ["memory://", None])
def test_without_shards_on_servers_nothing_moves(redis_url: str, url: str | None) -> None:
    limiter = Limiter(url or redis_url, LIMITS, shards=SHARDS if url else None)
    with pytest.raises(ConfigurationError, match="of which there are none here"):
        limiter.move_to_shard("mail", "erp")
    limiter.store.close()


def test_limits_that_wait_together_move_together(make: MakeLimiter, lines: Protocol) -> None:
    lines.limiter["mail"].define("1/h")
    lines.limiter["news"].define("1/h")
    lines.limiter["mail"].acquire()
    lines.park("1", ["mail", "news"])
    limiter = make()
    with pytest.raises(ConfigurationError, match="'mail' is needed together with 'news', which is"):
        limiter.move_to_shard("mail", "erp")
    assert limiter["mail"].peek().burst == 1
    assert [one.waiting for one in limiter.preview_move(["mail", "news"], "erp")] == [1, 1]
    limiter.move_to_shard(["mail", "news"], "erp")
    assert make().acquire(["erp"]).allowed
    assert not make().try_acquire(["mail", "news", "erp"])


def test_a_move_after_the_home_shard_has_lost_its_data(
    make: MakeLimiter, client: redis.Redis
) -> None:
    """Its epochs begin anew, below those of moves before."""
    limiter = make()
    for shard in ("erp", "home"):
        limiter.move_to_shard("mail", shard)
    client.delete(HOME_KEYS.limits, HOME_KEYS.shards)
    fresh = make(shards={"erp": {"limits": ["erp"]}})
    assert fresh["mail"].acquire(10)
    fresh["mail"].define("20/d burst 20")
    fresh.move_to_shard("mail", "erp")
    assert fresh["mail"].peek().burst == 20
    assert fresh["mail", 42].peek().remaining == 0


def test_a_shard_on_another_server(make: MakeLimiter, own_server: Server) -> None:
    shards = {"far": {"limits": ["erp"], "url": own_server.url}}
    limiter, other = make(shards=shards), make(shards=shards)
    limiter["mail"].define("20/d burst 20")
    limiter["mail"].acquire(5)
    other["mail"].acquire(5)
    own_server.stop()
    with pytest.raises(StoreError):
        limiter.move_to_shard("mail", "far")
    assert other["mail"].acquire().remaining == 9  # nothing was changed
    own_server.start()
    make(shards=shards).move_to_shard("mail", "far")
    assert not other["mail"].try_acquire()
    with own_server.client() as client:
        assert client.hexists(keys_of("far").limits, "mail")
