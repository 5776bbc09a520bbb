"""Where the limits of a limiter are decided, and by which plans: on a server, in memory, or not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from celery_throttle.limits.duration import Duration
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.shards import HOME
from celery_throttle.observe.observer import Observer
from celery_throttle.operations import acquire, lines, rules
from celery_throttle.operations import define as definition_plans
from celery_throttle.operations.author import Author
from celery_throttle.operations.memory import DisabledPlans, MemoryPlans
from celery_throttle.operations.plan import Clock, Fence, Plan
from celery_throttle.store.client import Store
from celery_throttle.store.keys import Keys
from celery_throttle.store.topology import NoServers
from celery_throttle.store.url import MEMORY_URL, is_memory_url

logger = logging.getLogger(__name__)


class Plans(acquire.AcquirePlans):
    """The plans of all operations on the limits of one prefix.

    Each is a function of what it uses. Workers use more of these functions.
    """

    __slots__ = ()

    register = definition_plans.register
    check_known = definition_plans.check_known
    define = definition_plans.define
    undefine = definition_plans.undefine
    list_names = lines.list_names
    pause = definition_plans.pause
    resume = definition_plans.resume
    reset = definition_plans.reset

    apply_rules = rules.apply_rules

    learn = acquire.learn
    release = acquire.release
    renew = acquire.renew


#: The plans of a limiter on one server, or in memory.
AnyPlans = Plans | MemoryPlans


def pause_all(plans: AnyPlans, lasts: Duration | None, author: Author) -> Plan[list[str]]:
    """Pause every limit; return their names."""
    names = yield from _all_names(plans)
    for name in names:
        yield from plans.pause(LimitRef(name, None), lasts, author)
    return names


def resume_all(plans: AnyPlans, author: Author) -> Plan[list[str]]:
    """Lift the pauses of all limits, not those of keys; return the names of paused limits."""
    lifted = {}
    for name in (yield from _all_names(plans)):
        lifted[name] = yield from plans.resume(LimitRef(name, None), author)
    return [name for name in lifted if lifted[name]]


def _all_names(plans: AnyPlans) -> Plan[list[str]]:
    _, names = yield from plans.list_names()
    return sorted({*names, *plans.limits})


class Backend(NamedTuple):
    """The parts of a limiter that depend on where its limits are decided."""

    store: Store
    plans: AnyPlans
    observer: Observer


def make_backend(
    url: str,
    limits: Mapping[str, Limits],
    keys: Keys,
    *,
    timeout: float,
    clock: Clock | None = None,
    restore: Callable[[], Plan[None]] | None = None,
    fence: Fence | None = None,
    store: Store | None = None,
    shard: str = HOME,
) -> Backend:
    """Return the backend of a URL; see :mod:`celery_throttle.store.url`.

    ``restore``, ``fence``: see :class:`~celery_throttle.operations.plan.PlanContext`. ``store``:
    that of the same server, whose connections are used. ``shard``: its name.

    Raises:
        ConfigurationError: the URL cannot be used, or not with the prefix of the keys.
    """
    store = store or Store(url, timeout=timeout, prefix=keys.prefix)
    if is_memory_url(url):
        return _without_server(store, MemoryPlans.of(limits, keys, clock), shard)
    plans = Plans(limits, keys, clock, restore, fence)
    observer = Observer(limits, keys, clock, plans.check_known, shard=shard)
    return Backend(store, plans, observer)


def disabled_backend(limits: Mapping[str, Limits], keys: Keys, reason: str) -> Backend:
    """Return the backend that allows all requests, and log that; ``reason``: what disabled it."""
    logger.warning("Limits are disabled (%s): everything is allowed", reason)
    store = Store(MEMORY_URL, servers=NoServers(reason))
    return _without_server(store, DisabledPlans.of(limits, keys, None))


def _without_server(store: Store, plans: MemoryPlans, shard: str = HOME) -> Backend:
    parts = plans.limits, plans.keys, plans.clock, plans.check_known
    return Backend(store, plans, Observer(*parts, has_server=False, shard=shard))
