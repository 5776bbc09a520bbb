"""Limiters of single shards, as processes with some settings of shards have them."""

from __future__ import annotations

from collections.abc import Mapping

from celery_throttle import Limiter
from celery_throttle.limiter.backend import make_backend
from celery_throttle.limits.shards import HOME, Shard
from celery_throttle.operations.shards import ShardFence, ShardIdentity
from celery_throttle.store.client import Store
from celery_throttle.store.keys import DEFAULT_PREFIX, Keys, shard_prefix

HOME_KEYS = Keys()


def keys_of(name: str) -> Keys:
    """Return the keys of a shard that does not divide keys."""
    return Keys(shard_prefix(DEFAULT_PREFIX, Shard(name)))


def shard_limiter(
    url: str,
    name: str,
    limits: Mapping[str, str],
    *,
    home_url: str | None = None,
    identity: ShardIdentity | None = None,
) -> Limiter:
    """Return a limiter whose limits the settings of its process give to a shard.

    Args:
        url: the server of the shard.
        name: its name.
        limits: the limits, as the code has them.
        home_url: the server of the home shard; default: the same.
        identity: of the shard; default: one shard for all keys, on the server of the home shard.
    """
    keys = keys_of(name)
    limiter = Limiter(url, limits, prefix=keys.prefix)
    if name != HOME:
        fence = ShardFence(HOME_KEYS, identity or ShardIdentity(name))
        limiter.backend = make_backend(url, limiter.limits, keys, timeout=30, fence=fence)
        limiter.home_store = Store(home_url or url, timeout=30)
    return limiter
