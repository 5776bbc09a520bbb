"""The fence: a limit is defined, and so granted, in one shard only, whatever the settings say."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import redis

from celery_throttle import ConfigurationError, Limiter, StoreError
from celery_throttle.errors import RulesError
from celery_throttle.limiter.limiter import apply_rules
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.rules.reader import read_rules
from celery_throttle.limits.shards import OtherShardError
from celery_throttle.operations.author import Author
from celery_throttle.operations.plan import Plan, PlanContext
from celery_throttle.operations.shards import (
    HOME_IDENTITY,
    ShardIdentity,
    begin_move,
    end_move,
    enter,
    leave,
)
from celery_throttle.testing import ManualClock
from tests.ends import MakeEnd
from tests.protocol import Protocol
from tests.servers.server import Server
from tests.shards import HOME_KEYS, home_store_of, keys_of, shard_limiter

LIMITS = {"api": "100/h burst 2", "mail": "100/h burst 3"}
MAIL, ERP = ShardIdentity("mail"), ShardIdentity("erp")

MakeLimiter = Callable[..., Limiter]


@pytest.fixture
def make(redis_url: str) -> Iterator[MakeLimiter]:
    made: list[Limiter] = []

    def make(name: str, **options: str | ShardIdentity) -> Limiter:
        limiter = shard_limiter(redis_url, name, LIMITS, **options)  # type: ignore[arg-type]  # as given
        made.append(limiter)
        return limiter

    yield make
    for limiter in made:
        limiter.store.close()
        home_store_of(limiter).close()


def move(home: Limiter, from_: Limiter, to: ShardIdentity) -> None:
    """Move the limit "mail" without what was there, as if the shard had lost that."""
    begun = home.run_plan(begin_move(HOME_KEYS, "mail", to))
    from_.run_plan(leave(from_.plans, begun, to))
    home.run_plan(end_move(HOME_KEYS, ["mail"], to))


def test_the_first_proposal_counts(make: MakeLimiter, end_of: MakeEnd) -> None:
    mail, erp = end_of(make("mail")), end_of(make("erp"))
    assert mail["mail"].try_acquire().remaining == 2
    with pytest.raises(OtherShardError, match="'mail' is in shard 'mail', where other") as raised:
        erp["mail"].try_acquire()
    assert (raised.value.limit, raised.value.shard) == ("mail", "mail")
    assert erp["api"].try_acquire().remaining == 1


def test_a_process_without_shards_defines_no_limit_of_a_shard(make: MakeLimiter) -> None:
    make("mail")["mail"].acquire()
    home = make("home")
    for call in (home["mail"].acquire, home["mail"].peek, lambda: home["mail"].define("9/h")):
        with pytest.raises(ConfigurationError, match="give this process the same throttle_shards"):
            call()
    home.register()  # as a worker does at its start: all other limits
    assert home["api"].try_acquire()
    with pytest.raises(OtherShardError):
        home["mail"].try_acquire()


def test_new_settings_move_nothing(make: MakeLimiter) -> None:
    home = make("home")
    home["mail"].acquire()
    with pytest.raises(OtherShardError) as raised:
        make("mail")["mail"].acquire()
    assert raised.value.shard == "home"
    assert home["mail"].try_acquire().remaining == 1


def test_a_rules_file_defines_no_limit_of_another_shard(make: MakeLimiter) -> None:
    make("mail")["mail"].acquire()
    home = make("home")
    rules = read_rules('[limits]\napi = "9/h"\n"mail:42" = "8/h"', "rules.toml", home.limits)
    with pytest.raises(RulesError, match="'mail' is in shard 'mail'"):
        apply_rules(home, rules, "rules.toml")
    assert home["api"].peek().burst == 2
    mail = make("mail")
    assert apply_rules(
        mail, read_rules('[limits]\nmail = "9/h burst 9"', "rules.toml"), "rules.toml"
    )
    assert mail["mail"].peek().burst == 9


def test_two_shards_with_one_name_are_an_error(make: MakeLimiter) -> None:
    make("mail")["mail"].acquire()
    others = [ShardIdentity("mail", by_key=4), ShardIdentity("mail", server="redis://other:6379")]
    for identity in others:
        with pytest.raises(
            ConfigurationError, match="shard 'mail' has by_key None and url None in"
        ):
            make("mail", identity=identity)["api"].acquire()
    with pytest.raises(OtherShardError):  # nothing was assigned
        make("erp")["mail"].acquire()
    assert make("erp")["api"].acquire().remaining == 1


def test_a_shard_on_another_server(make: MakeLimiter, redis_url: str, own_server: Server) -> None:
    identity = ShardIdentity("erp", server=own_server.url)
    erp = shard_limiter(own_server.url, "erp", LIMITS, home_url=redis_url, identity=identity)
    assert erp["mail"].acquire().remaining == 2
    with pytest.raises(OtherShardError):
        make("home")["mail"].acquire()
    with own_server.client() as client:
        assert client.exists(erp.keys.limits)
        assert not client.exists(HOME_KEYS.shards)
    erp.store.close()
    home_store_of(erp).close()


def test_a_limit_moves(make: MakeLimiter) -> None:
    home, mail, erp = make("home"), make("mail"), make("erp")
    mail["mail"].acquire()
    mail["mail"].define("50/h burst 20", weight=3)
    mail["mail", "42"].define("40/h burst 30", weight=4)
    move(home, mail, ERP)
    for limiter in (home, mail):
        with pytest.raises(OtherShardError, match="'mail' is in shard 'erp'"):
            limiter["mail", "42"].acquire()
    assert erp["mail", "42"].acquire().burst == 3
    move(home, erp, HOME_IDENTITY)
    assert home["mail"].acquire().burst == 3
    with pytest.raises(OtherShardError, match="'mail' is in shard 'home'"):
        erp["mail"].acquire()
    move(home, home, MAIL)
    assert mail["mail"].acquire().burst == 3


def test_a_limit_on_its_way_is_granted_nowhere(make: MakeLimiter) -> None:
    home, mail, erp = make("home"), make("mail"), make("erp")
    mail["mail"].acquire()
    begun = home.run_plan(begin_move(HOME_KEYS, "mail", ERP))
    assert mail["mail"].try_acquire()  # its shard has not left it
    with pytest.raises(StoreError, match="'mail' is being moved to shard 'erp'"):
        erp["mail"].acquire()
    with pytest.raises(ConfigurationError, match="cannot move to shard 'mail': it moves to"):
        home.run_plan(begin_move(HOME_KEYS, "mail", MAIL))
    assert home.run_plan(begin_move(HOME_KEYS, "mail", ERP)) == begun  # goes on
    mail.run_plan(leave(mail.plans, begun, ERP))
    for limiter in (mail, erp):
        with pytest.raises(StoreError, match="is being moved"):
            limiter["mail"].acquire()
    with pytest.raises(OtherShardError):
        home["mail"].acquire()


def test_a_limit_moves_from_a_server_whose_clock_is_ahead(make: MakeLimiter) -> None:
    home, mail = make("home"), make("mail")
    home.register()
    begun = home.run_plan(begin_move(HOME_KEYS, "mail", MAIL))
    ahead = PlanContext({}, HOME_KEYS, ManualClock(time.time_ns() // 1000 + 60_000_000))
    left = home.run_plan(leave(ahead, begun, MAIL))
    mail.run_plan(enter(mail.plans, begun, left, MAIL, Author.of("ann")))
    home.run_plan(end_move(HOME_KEYS, ["mail"], MAIL))
    assert not mail["mail"].try_acquire()  # used up
    assert not mail["mail"].status().pauses


def test_an_answer_from_before_a_move_defines_nothing(make: MakeLimiter) -> None:
    home, mail, erp = make("home"), make("mail"), make("erp")
    mail["mail"].acquire()
    plan = mail.plans.define(LimitRef("mail", None), "9/h")
    asked = next(plan)
    answer = home_store_of(mail).run(asked.call)  # type: ignore[union-attr]  # the call to the home shard
    move(home, mail, ERP)
    assert erp["mail"].acquire()
    call = plan.send(answer)
    refused = mail.store.run(call)  # type: ignore[arg-type]  # a call
    assert refused == [1, [], [1, b"erp"]]
    with pytest.raises(OtherShardError, match="in shard 'erp'"):
        mail.run_plan(_continue(plan, refused))


def _continue(plan: Plan[None], reply: object) -> Plan[None]:
    """Continue a plan with the reply to its last step."""
    step = plan.send(reply)
    while True:
        step = plan.send((yield step))


def test_a_home_shard_that_has_lost_its_data_learns_the_map_again(
    make: MakeLimiter, client: redis.Redis
) -> None:
    home, mail, erp = make("home"), make("mail"), make("erp")
    mail["mail"].acquire()
    client.delete(HOME_KEYS.limits, HOME_KEYS.shards)
    assert home["mail"].try_acquire()  # by a process without settings of shards
    repeat(mail, "mail", "api")
    for limiter in (home, erp):
        with pytest.raises(OtherShardError, match="'mail' is in shard 'mail'"):
            limiter["mail"].acquire()
    assert mail["mail"].try_acquire().remaining == 1
    assert home["api"].try_acquire()  # it was not in the shard


def test_the_latest_of_two_shards_keeps_a_limit(make: MakeLimiter, client: redis.Redis) -> None:
    home, mail, erp = make("home"), make("mail"), make("erp")
    erp["mail"].acquire()
    move(home, erp, MAIL)
    mail["mail"].acquire()
    client.delete(HOME_KEYS.limits, HOME_KEYS.shards)
    assert erp["mail"].try_acquire()  # its mark is later than the new map
    for limiter in (erp, mail, erp):
        repeat(limiter, "mail")
    with pytest.raises(OtherShardError, match="'mail' is in shard 'mail'"):
        erp["mail"].acquire()
    assert mail["mail"].try_acquire().remaining == 1
    definitions = [client.hexists(keys_of(name).limits, "mail") for name in ("mail", "erp")]
    assert definitions == [True, False]


def test_tasks_that_wait_at_a_limit_that_is_given_up_are_handed_to_workers(
    lines: Protocol,
) -> None:
    home = lines.limiter
    lines.client.delete(lines.keys.limits)
    mail = shard_limiter(lines.url, "mail", {"api": "1/h burst 1000"})
    mail["api"].acquire()
    lines.client.delete(lines.keys.shards)
    home["api"].acquire(1000)
    lines.park("1", ["api"])
    repeat(mail, "api")
    with pytest.raises(OtherShardError):
        home["api"].acquire()
    lines.now = time.time_ns() // 1000  # as the heartbeat has it
    assert [task.id for task in lines.claim()] == ["1"]
    mail.store.close()
    home_store_of(mail).close()


def repeat(limiter: Limiter, *names: str) -> None:
    """Repeat where limits are, as heartbeats do."""
    fence = limiter.plans.fence
    assert fence is not None
    limiter.run_plan(fence.repeat(limiter.plans, names))


def test_an_installation_without_shards_has_no_map(make: MakeLimiter, client: redis.Redis) -> None:
    home = make("home")
    home.register()
    home["api"].acquire()
    home["mail"].define("9/h")
    assert not client.exists(HOME_KEYS.shards)
    assert not client.exists(keys_of("mail").limits)


def test_a_limit_that_the_code_of_the_home_shard_does_not_have_is_followed(
    make: MakeLimiter, redis_url: str
) -> None:
    """As the code of a process that has just learned where the limit is."""
    make("mail")["mail"].acquire()
    home = Limiter(redis_url, {"api": "1/h"})
    with pytest.raises(OtherShardError, match="'mail' is in shard 'mail'"):
        home["mail"].try_acquire()
    home.store.close()
