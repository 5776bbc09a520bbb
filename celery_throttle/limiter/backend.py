"""Where the limits of a limiter are decided: on a server, in memory, or, disabled, not at all."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from celery_throttle.limits.limit import Limits
from celery_throttle.observe.observer import Observer
from celery_throttle.operations.memory import DisabledPlans, MemoryPlans
from celery_throttle.operations.plan import Clock, Plan
from celery_throttle.operations.server import Plans
from celery_throttle.store.client import Serverless, Store
from celery_throttle.store.keys import Keys
from celery_throttle.store.url import is_memory_url

logger = logging.getLogger(__name__)


class Backend(NamedTuple):
    """The parts of a limiter that depend on where its limits are decided."""

    store: Store
    plans: Plans | MemoryPlans
    observer: Observer


def make_backend(
    url: str,
    limits: Mapping[str, Limits],
    keys: Keys,
    *,
    timeout: float,
    clock: Clock | None = None,
    restore: Callable[[], Plan[None]] | None = None,
) -> Backend:
    """Return the backend of a URL; see :mod:`celery_throttle.store.url`.

    ``restore``: see :class:`~celery_throttle.operations.plan.PlanContext`.

    Raises:
        ConfigurationError: the URL cannot be used, or not with the prefix of the keys.
    """
    store = Store(url, timeout=timeout, prefix=keys.prefix)
    if is_memory_url(url):
        return _without_server(store, MemoryPlans.of(limits, keys, clock))
    plans = Plans(limits, keys, clock, restore)
    return Backend(store, plans, Observer(limits, keys, clock, plans.check_known))


def disabled_backend(limits: Mapping[str, Limits], keys: Keys, reason: str) -> Backend:
    """Return the backend that allows all requests, and log that; ``reason``: what disabled it."""
    logger.warning("Limits are disabled (%s): everything is allowed", reason)
    return _without_server(Serverless(reason), DisabledPlans.of(limits, keys, None))


def _without_server(store: Store, plans: MemoryPlans) -> Backend:
    parts = plans.limits, plans.keys, plans.clock, plans.check_known
    return Backend(store, plans, Observer(*parts, has_server=False))
