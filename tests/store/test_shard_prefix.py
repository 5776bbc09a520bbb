"""The prefixes of shards: each a hash tag of its own, spread evenly over the slots of a cluster."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from celery_throttle.limits.shards import HOME_SHARD, Shard
from celery_throttle.store.keys import DEFAULT_PREFIX, Keys, has_hash_tag, shard_prefix

SLOTS = 16384


def slot(shard: Shard, prefix: str = DEFAULT_PREFIX) -> int:
    """Return the slot of the keys of a shard, all of which must have the same."""
    keys = Keys(shard_prefix(prefix, shard))
    [found] = {key_slot(name.encode()) for name in (keys.limits, *keys.queue("celery"))}
    assert isinstance(found, int)
    return found


@pytest.mark.parametrize("prefix", [DEFAULT_PREFIX, "acme", "{acme}:limits", "a:{b}"])
@pytest.mark.parametrize("count", [1, 2, 3, 16, 64])
def test_the_ith_shard_is_in_the_ith_of_n_equal_ranges_of_slots(prefix: str, count: int) -> None:
    slots = [slot(Shard("tenants", number, count), prefix) for number in range(count)]
    assert [found * count // SLOTS for found in slots] == list(range(count))


@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_each_node_of_a_cluster_has_the_same_number_of_shards(nodes: int) -> None:
    on_nodes = [slot(Shard("tenants", number, 16)) * nodes // SLOTS for number in range(16)]
    assert on_nodes == sorted([*range(nodes)] * (16 // nodes))


def test_prefixes_are_the_same_in_every_process_and_version() -> None:
    shards = (HOME_SHARD, Shard("mail"), Shard("tenants", 0, 16), Shard("tenants", 15, 16))
    assert [shard_prefix(DEFAULT_PREFIX, shard) for shard in shards] == PINNED
    assert shard_prefix("acme", Shard("mail")) == "{acme:mail}"
    assert shard_prefix("{acme}:limits", Shard("mail")) == "{acme:mail}:limits"


PINNED = [
    "{throttle}",
    "{throttle:mail}",
    "{throttle:tenants:0/16.0}",
    "{throttle:tenants:15/16.3}",
]

_shards = st.one_of(
    st.sampled_from(["mail", "erp", "tenants"]).map(Shard),
    st.integers(1, 20).flatmap(
        lambda count: st.builds(
            Shard, st.sampled_from(["tenants", "users"]), st.integers(0, count - 1), st.just(count)
        )
    ),
)


@given(_shards, _shards, st.sampled_from([DEFAULT_PREFIX, "acme", "{a}:b"]))
def test_two_shards_never_share_a_key(one: Shard, other: Shard, prefix: str) -> None:
    prefixes = [shard_prefix(prefix, shard) for shard in (HOME_SHARD, one, other)]
    assert all(map(has_hash_tag, prefixes[1:]))
    assert len({f"{found}:" for found in prefixes}) == (2 if one == other else 3)
