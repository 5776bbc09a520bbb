"""The catalogue of keys, and what a server has."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from celery_throttle.limits.key import LimitRef
from celery_throttle.store.keys import Keys
from tests.key_catalogue import KEY_KINDS
from tests.lua_names import script_names
from tests.redis_keys import CATALOGUE, DOCS, assert_catalogued, key_table, kind_of

KEYS = Keys("{mine}")
REFS = LimitRef("mail", None), LimitRef("mail", "a:!none:%2F")


def test_the_documentation_is_up_to_date() -> None:
    assert DOCS.read_text(encoding="utf-8") == key_table(), "run: make keys"


def test_writers_are_scripts() -> None:
    writers = {name for kind in KEY_KINDS for name in kind.writers.split(", ")}
    assert writers <= set(script_names())


#: Members of `Keys` that name no key.
_NO_NAMES = (
    *("prefix", "field", "field_ref", "fan_out_name", "fan_out_number"),
    *("definition_change", "shard_move"),
)


def names() -> Iterator[tuple[str, Any]]:
    """Each public attribute and method of `Keys` that names something, with what it returns."""
    arguments: dict[str, list[Any]] = {
        "ref": list(REFS),
        "refs": [(), REFS],
        "name": ["mail"],
        "queue": ["redis/0/{a}: b\n"],
        "worker": ["celery@host:1:ab"],
        "entries": [KEYS.entries(ref) for ref in REFS],
        "which": ["recent", "week"],
        "what": ["report"],
        "task": ["", "shop.index"],
        "task_id": ["7d3e"],
    }
    for name, member in inspect.getmembers(Keys):
        if name.startswith("_") or name in _NO_NAMES:
            continue
        if isinstance(member, str):
            yield name, getattr(KEYS, name)
            continue
        parameters = list(inspect.signature(getattr(KEYS, name)).parameters)
        values = [arguments[parameter] for parameter in parameters]
        for some in zip(*values, strict=False):
            yield name, getattr(KEYS, name)(*some)


@pytest.mark.parametrize(("method", "made"), list(names()))
def test_every_name_is_in_the_catalogue(method: str, made: str | tuple[str, ...]) -> None:
    for name in (made,) if isinstance(made, str) else made:
        assert kind_of(name, KEYS.prefix), f"Keys.{method} is not in {CATALOGUE}"


@pytest.mark.parametrize(
    "name", ["{throttle}", "{throttle}limits", "{throttle}:limits:more", "{throttle}:state:a+1"]
)
def test_other_names_are_not(name: str) -> None:
    assert kind_of(name) is None


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    """Its keys are this file's subject, so they go before `redis_url` looks."""
    with redis.Redis.from_url(redis_url) as client:
        yield client
        client.flushall()


def test_a_key_that_is_not_in_the_catalogue_is_named(client: redis.Redis) -> None:
    client.set("{throttle}:state:mail", 1, ex=10)
    client.set("{throttles}", 1)
    assert [*assert_catalogued(client)] == ["{throttle}:state:mail"]
    client.set("{throttle}:status:mail", 1, ex=10)
    with pytest.raises(AssertionError, match=rf"^not in {CATALOGUE}: {{throttle}}:status:mail$"):
        assert_catalogued(client)


def test_a_key_of_another_type_is_named(client: redis.Redis) -> None:
    client.zadd("{throttle}:state:mail", {"": 1})
    with pytest.raises(AssertionError, match=f":state:mail is a zset, in {CATALOGUE}"):
        assert_catalogued(client)


def test_a_key_without_its_expiry_is_named(client: redis.Redis) -> None:
    client.hset("{throttle}:limits", "mail", "")
    client.zadd("{throttle}:workers", {"": 1})
    client.set("{throttle}:pause:mail", 1)
    with pytest.raises(AssertionError, match=r"^without expiry.*: {throttle}:pause:mail$"):
        assert_catalogued(client)
