"""The share of a limit that one of several workers may use during an outage of the server."""

from __future__ import annotations

from math import gcd

from celery_throttle.algorithms.state import ceil_div
from celery_throttle.errors import LimitValueError
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import MAX_PERIOD_US, Rate

#: Algorithms whose shares have a burst: windows and leaky queues get no burst allowance.
_WITH_BURST = ("gcra", "token-bucket", "leaky-bucket", "adaptive")


def make_share(limit: Limit, workers: int, cost: int = MILLION) -> Limit | None:
    """Return one of ``workers`` equal shares of a rate, evenly spread over time.

    In any period all shares together admit no more than the rate emits, and a burst besides. The
    burst of each share is the burst divided by the workers, rounded down, but at least ``cost``
    (millionths of a unit), or a task would wait for ever. None if a share is too small to be
    counted, such as less than a unit in 366 days.
    """
    assert isinstance(limit.rate, Rate)  # noqa: S101  # slots are shared by the caller
    # No feedback arrives during an outage, so an adaptive limit has its lowest rate.
    count, period = limit.lowest or limit.rate.count, limit.rate.period_us * workers
    divisor = gcd(count, period)
    count, period = count // divisor, period // divisor
    if period > MAX_PERIOD_US:
        count, period = count * MAX_PERIOD_US // period, MAX_PERIOD_US
    if not count:
        return None
    burst = limit.burst // workers if limit.algorithm in _WITH_BURST else 0
    try:
        return Limit(Rate(count, period), max(burst, ceil_div(cost, MILLION), 1))
    except LimitValueError:
        return None
