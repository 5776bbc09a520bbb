"""Bindings as brokers interpret them."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from kombu import Exchange, Queue, binding

from celery_throttle.tasks.messages.routing import is_bound

TOPIC, DIRECT = Exchange("topic", "topic"), Exchange("direct", "direct")


@pytest.mark.parametrize(
    ("pattern", "meant", "not_meant"),
    [
        ("a.b", ["a.b"], ["a", "axb", "a.b.c"]),
        ("a.*", ["a.b", "a.x"], ["a", "b.a"]),
        ("a.#", ["a.b", "a.b.c"], ["ab", "b.a"]),
        ("#.b", ["a.b", "a.a.b"], ["ab", "b.a"]),
        ("a.*.b", ["a.x.b"], ["a.b"]),
        ("a.#.b", ["a.x.b", "a.x.y.b"], ["a", "b", "a.xb"]),
        ("#", ["a", "a.b"], []),
    ],
)
@pytest.mark.parametrize("driver_type", ["redis", "amqp"])
def test_patterns(pattern: str, meant: list[str], not_meant: list[str], driver_type: str) -> None:
    queue = Queue("q", TOPIC, pattern)
    assert all(is_bound(queue, "topic", key, driver_type) for key in meant)
    assert not any(is_bound(queue, "topic", key, driver_type) for key in not_meant)


@pytest.mark.parametrize(("pattern", "key"), [("a.*", "a.b.c"), ("a.*.b", "a.x.y.b")])
def test_a_star_stands_for_one_word(pattern: str, key: str) -> None:
    queue = Queue("q", TOPIC, pattern)
    assert not is_bound(queue, "topic", key, "amqp")
    # Where kombu routes, its version decides: before 5.7 a star may stand for several words.
    assert is_bound(queue, "topic", key, "redis") == version("kombu").startswith(("5.5.", "5.6."))


@pytest.mark.parametrize(("pattern", "key"), [("a.#", "a"), ("#.b", "b"), ("a.#.b", "a.b")])
def test_in_amqp_a_hash_may_stand_for_nothing(pattern: str, key: str) -> None:
    queue = Queue("q", TOPIC, pattern)
    assert is_bound(queue, "topic", key, "amqp")
    assert not is_bound(queue, "topic", key, "redis")  # so kombu has it


def test_each_of_several_bindings_counts() -> None:
    queue = Queue("q", bindings=[binding(TOPIC, "a.*"), binding(DIRECT, "b")])
    assert is_bound(queue, "topic", "a.x", "redis")
    assert is_bound(queue, "direct", "b", "redis")
    assert not is_bound(queue, "direct", "a.x", "redis")
    assert not is_bound(queue, "other", "b", "redis")


def test_the_default_exchange_goes_by_the_name_of_the_queue() -> None:
    assert is_bound(Queue("q", DIRECT, "key"), "", "q", "redis")
    assert not is_bound(Queue("q", DIRECT, "key"), "", "key", "redis")


@pytest.mark.parametrize("kind", ["fanout", "headers"])
def test_other_exchanges_do_not_go_by_the_key(kind: str) -> None:
    assert not is_bound(Queue("q", Exchange("x", kind), "key"), "x", "key", "amqp")
