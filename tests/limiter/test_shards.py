"""A limiter whose settings divide its limits among shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_throttle import ConfigurationError, Limiter, StoreError
from celery_throttle.clients.requests import ThrottledAdapter
from celery_throttle.limiter.limiter import apply_rules
from celery_throttle.limiter.parts import MakePart
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.rules.reader import read_rules
from celery_throttle.limits.shards import OtherShardError, Shard
from celery_throttle.store.keys import DEFAULT_PREFIX, Keys, shard_prefix
from tests.ends import MakeEnd
from tests.servers.server import Server
from tests.shards import keys_of

LIMITS = {
    "api": "100/h burst 10",
    "mail": "100/h burst 20",
    "news": "100/h burst 30",
    "tenant": "100/h burst 40",
    "erp": "2 at once",
}
SHARDS: dict[str, Any] = {
    "mail": {"limits": ["mail", "news"]},
    "tenants": {"limits": ["tenant"], "by_key": 4},
}

MakeLimiter = Callable[..., Limiter]


@pytest.fixture
def make(redis_url: str) -> Iterator[MakeLimiter]:
    made: list[Limiter] = []

    def make(shards: Any = SHARDS, url: str = redis_url, limits: Any = LIMITS) -> Limiter:
        made.append(Limiter(url, limits, shards=shards, timeout=30))
        return made[-1]

    yield make
    for limiter in made:
        stores = [limiter.store, *(part.store for part in (limiter.parts or _NO_PARTS).all())]
        for store in stores:
            store.close()


class _NoParts:
    def all(self) -> list[Any]:
        return []


_NO_PARTS: Any = _NoParts()


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


def tenant_keys() -> list[Keys]:
    shards = (Shard("tenants", number, 4) for number in range(4))
    return [Keys(shard_prefix(DEFAULT_PREFIX, shard)) for shard in shards]


def test_each_limit_has_the_keys_of_its_shard(
    make: MakeLimiter, end_of: MakeEnd, client: redis.Redis
) -> None:
    limiter = end_of(make())
    assert limiter["api"].acquire().remaining == 9
    assert limiter["mail"].acquire().remaining == 19
    assert limiter.acquire(["mail", "news"]).remaining == 18
    for key in range(20):
        assert limiter["tenant", key].acquire().remaining == 39
    assert client.exists(Keys().state(LimitRef("api", None)))
    assert client.exists(keys_of("mail").state(LimitRef("mail", None)))
    assert not client.keys(f"{DEFAULT_PREFIX}:state:[^a]*")
    states = [len(client.keys(f"{keys.prefix}:state:*")) for keys in tenant_keys()]
    assert sum(states) == 20
    assert all(states)


def test_limits_of_two_shards_are_an_error_that_says_what_to_write(
    make: MakeLimiter, end_of: MakeEnd
) -> None:
    limiter = end_of(make())
    with pytest.raises(ConfigurationError, match="'api' in shard 'home' and 'mail' in shard 'mai"):
        limiter.acquire(["api", "mail"])
    with pytest.raises(ConfigurationError, match="name both in the same entry of throttle_shards"):
        limiter.peek([limiter["tenant", 1].ref, "mail"])
    with pytest.raises(ConfigurationError, match="it has no state without a key; name a key"):
        limiter["tenant"].acquire()


def test_clients_refuse_limits_of_two_shards(make: MakeLimiter) -> None:
    limiter = make()
    with pytest.raises(ConfigurationError, match="limits of two shards: 'api' in shard 'home'"):
        ThrottledAdapter([limiter["api"], limiter["mail"]])
    ThrottledAdapter([limiter["mail"], limiter["news"]])


def test_a_whole_limit_that_is_divided_by_key_is_changed_in_all_its_shards(
    make: MakeLimiter,
) -> None:
    limiter, other = make(), make()
    for key in range(20):
        limiter["tenant", key].acquire()
    limiter["tenant"].define("7/h burst 7")
    limiter["tenant", 3].define("9/h burst 9")
    bursts = {key: other["tenant", key].peek().burst for key in range(20)}
    assert bursts == {**dict.fromkeys(range(20), 7), 3: 9}
    assert limiter["tenant"].pause(60) == 60
    assert not any(other["tenant", key].try_acquire() for key in range(20))
    assert limiter["tenant"].resume()
    assert not limiter["tenant"].resume()
    assert all(other["tenant", key].try_acquire() for key in range(4, 20))
    limiter["tenant"].undefine()
    assert other["tenant", 1].peek().burst == 40
    limiter["tenant"].reset()
    limiter["tenant", 1].reset()
    assert other["tenant", 1].peek().remaining == 40


def test_the_status_of_a_divided_limit_is_the_sum(make: MakeLimiter) -> None:
    limiter = make()
    for key in range(20):
        limiter["tenant", key].acquire(2)
    limiter["tenant", 1].pause(60)
    limiter["tenant", 2].pause(60)
    status = limiter["tenant"].status()
    assert (status.totals.granted, status.paused_keys, status.waiting) == (40, 2, 0)
    assert sorted(key for key, _ in status.top_paused_keys) == ["1", "2"]
    assert limiter["tenant", 1].status().pauses[0].key == "1"
    assert limiter["tenant"].forecast().waiting == 0
    report = limiter["tenant"].report(60)
    assert report.totals.granted == 40
    assert sum(period.totals.granted for period in report.periods) == 40
    assert sum(period.totals.granted for period in status.recent) == 40
    assert limiter["tenant", 1].list_waiting().waiting == 0


@pytest.mark.parametrize("most", [1, 2, 3, 100])
def test_pages_of_all_shards_are_merged_by_name(make: MakeLimiter, most: int) -> None:
    limiter = make()
    limiter["tenant"].define("7/h burst 7")
    limiter["mail"].acquire()
    found, page = [], limiter.status(most=most)
    while True:
        assert len(page.limits) <= most
        found += [status.name for status in page.limits]
        if page.next is None:
            break
        page = limiter.status(most=most, after=page.next)
    assert found == sorted(LIMITS)


def test_changes_of_all_shards_are_merged(make: MakeLimiter) -> None:
    limiter = make()
    names = ("mail", "api", "news", "tenant", "api")
    for name in names:
        limiter[name].define("7/h")
    found = limiter.changes()
    milliseconds = [change.at.timestamp() * 1000 // 1 for change in found]
    assert milliseconds == sorted(milliseconds, reverse=True)
    defined = sorted(change.limit for change in found if change.action == "define")
    assert defined == sorted([*names, *["tenant"] * 3])  # in each of its shards
    assert len(limiter.changes(most=2)) == 2


@pytest.mark.parametrize("most", [1, 2, 3])
def test_pages_of_changes_have_each_change_once(make: MakeLimiter, most: int) -> None:
    """Also changes of several shards in the same millisecond."""
    limiter, found = make(), list[str]()
    limiter.pause_all(60)
    while page := limiter.changes(most=most, before=found[-1] if found else None):
        found += [change.id for change in page]
    assert found == [change.id for change in limiter.changes()]
    assert len({*found}) == len(found) == len(LIMITS) + 3  # one limit is in four shards


def test_all_limits_are_paused_and_registered(make: MakeLimiter, client: redis.Redis) -> None:
    limiter = make()
    limiter.register()
    assert sorted(client.hkeys(keys_of("mail").limits)) == ["mail", "news"]
    assert sorted(client.hkeys(Keys().limits)) == ["api", "erp"]
    assert all(client.hkeys(keys.limits) == ["tenant"] for keys in tenant_keys())
    assert limiter.pause_all(60) == sorted(LIMITS)
    assert not limiter["tenant", 5].try_acquire()
    assert limiter.resume_all() == sorted(LIMITS)


@pytest.mark.parametrize("first", [{}, SHARDS], ids=["home", "another shard"])
def test_a_limit_is_registered_where_it_is(make: MakeLimiter, first: Any) -> None:
    """The settings propose the other shard."""
    make(first).register()
    newer = {**LIMITS, "news": "200/h"}
    make({"mail": {"limits": ["mail"]}} if first else SHARDS, limits=newer).register()
    assert make(first)["news"].status().clauses == ("200/h",)


def test_slots_reservations_and_feedback_go_to_their_shard(
    make: MakeLimiter, end_of: MakeEnd
) -> None:
    shards = {"mail": {"limits": ["mail", "erp"]}}
    limiter = end_of(make(shards))
    with limiter.slot(["erp"]):
        assert make(shards)["erp"].status().slots_used == 1
    assert make(shards)["erp"].status().slots_used == 0
    reservation = limiter["mail"].reserve(5)
    reservation.settle(2)
    assert limiter["mail"].peek().remaining == 18
    assert limiter["mail"].learn(Feedback(refused=True, stop=30)) == 30
    assert not limiter["mail"].try_acquire()


def test_a_shard_on_another_server(
    make: MakeLimiter, own_server: Server, client: redis.Redis
) -> None:
    limiter = make({"far": {"limits": ["mail", "tenant"], "url": own_server.url}})
    assert limiter["mail"].acquire().remaining == 19
    assert limiter["api"].acquire().remaining == 9
    assert not client.keys("*mail*state*")
    own_server.stop()
    with pytest.raises(StoreError):
        limiter["mail"].acquire()
    assert limiter["api"].acquire().remaining == 8
    status = limiter.status()
    assert status.lost_shards == ("far",)
    assert [one.name for one in status.limits] == ["api", "erp", "news"]
    own_server.start()


def test_settings_only_propose(make: MakeLimiter, end_of: MakeEnd) -> None:
    """During a deploy, processes have different settings: they find the limits where they are."""
    old, new = end_of(make({"other": {"limits": ["nothing"]}})), end_of(make())
    old["mail"].acquire()
    old["news"].acquire()
    assert new.acquire(["mail", "news"]).remaining == 18  # both at once
    assert new["mail"].acquire().remaining == 17
    assert new["tenant", 1].acquire().remaining == 39
    with pytest.raises(OtherShardError, match="give this process the same throttle_shards"):
        old["tenant", 1].acquire()
    new["mail"].define("7/h burst 7")
    assert old["mail"].peek().burst == 7
    fresh = make()
    assert fresh["mail"].pause(60) == 60
    assert not old["mail"].try_acquire()


def test_a_limit_that_other_processes_have_in_another_shard_is_followed(make: MakeLimiter) -> None:
    make({"mail": {"limits": ["api"]}, "far": {"limits": ["mail"]}})["api"].acquire(3)
    limiter = make({"mail": {"limits": ["mail"]}, "far": {"limits": ["api"]}})
    handle = limiter["api"]
    assert handle.acquire().remaining == 6
    assert handle.acquire().remaining == 5
    assert limiter.acquire(["api", "mail"]).remaining == 4  # it is in the same shard


def test_a_rules_file_is_divided_among_the_shards(make: MakeLimiter) -> None:
    limiter = make()
    text = '[limits]\napi = "9/h"\ntenant = "8/h burst 8"\n"tenant:3" = "6/h burst 6"\n'
    text += 'mail = "5/h burst 5"\n[weights]\n"tenant:3" = 4\n'
    assert apply_rules(limiter, read_rules(text, "rules.toml", limiter.limits), "rules.toml")
    found = {key: make()["tenant", key].peek().burst for key in range(8)}
    assert found == {**dict.fromkeys(range(8), 8), 3: 6}
    assert make()["mail"].peek().burst == 5
    assert limiter["tenant", 3].status().weight == 4
    fewer = read_rules('[limits]\napi = "9/h"', "rules.toml", limiter.limits)
    assert apply_rules(limiter, fewer, "rules.toml")
    assert make()["tenant", 3].peek().burst == 40
    assert make()["mail"].peek().burst == 20


def test_limits_in_memory_have_shards(end_of: MakeEnd) -> None:
    limiter = end_of(Limiter("memory://", LIMITS, shards=SHARDS))
    assert limiter["mail"].acquire().remaining == 19
    assert limiter["tenant", 1].acquire().remaining == 39
    limiter["tenant"].define("7/h burst 7")
    assert [limiter["tenant", key].peek().burst for key in range(8)] == [7] * 8
    with pytest.raises(ConfigurationError, match="limits of two shards"):
        limiter.acquire(["api", "mail"])


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ({"mail": {"limits": []}}, r"shards\['mail'\] has limits \[\]"),
        ({"home": {"limits": ["mail"]}}, "the home shard has all other limits"),
        (
            {"mail": {"limits": ["mail"], "url": "http://u:secret@nowhere"}},
            r"shards\['mail'\] has url 'http://nowhere'; allowed: the URL of a server, such as",
        ),
    ],
)
def test_wrong_settings_are_named(shards: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Limiter("redis://localhost", LIMITS, shards=shards)


def test_what_makes_the_parts_has_no_secrets_when_it_is_shown() -> None:
    make = MakePart("redis://:secret@localhost", {}, DEFAULT_PREFIX, 1.0)
    assert "secret" not in repr(make)


_names = st.sampled_from(["api", "mail", "news", "tenant"])
_refs = st.tuples(_names, st.none() | st.integers(0, 9))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(calls=st.lists(st.tuples(_refs, st.integers(1, 3)), max_size=15))
def test_shards_decide_as_one_server_does(calls: list[tuple[tuple[str, int | None], int]]) -> None:
    plain = Limiter("memory://", LIMITS)
    sharded = Limiter("memory://", LIMITS, shards=SHARDS)
    for (name, key), cost in calls:
        if name == "tenant" and key is None:
            continue
        item: Any = name if key is None else (name, key)
        assert plain[item].try_acquire(cost).remaining == sharded[item].try_acquire(cost).remaining


def test_without_the_home_shard_other_shards_are_shown(
    make: MakeLimiter, own_server: Server, redis_url: str
) -> None:
    limiter = make({"far": {"limits": ["mail"], "url": redis_url}}, url=own_server.url)
    limiter["mail"].acquire(3)
    own_server.stop()
    status = limiter.status()
    assert ([one.name for one in status.limits], status.lost_shards) == (["mail"], ("home",))
    assert limiter["mail"].status().totals.granted == 3
    with pytest.raises(StoreError, match="shard 'home': the server at"):
        limiter.changes()
    own_server.start()
