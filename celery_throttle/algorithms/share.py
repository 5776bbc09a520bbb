"""The share of a limit that one of several workers may use while they cannot ask the server."""

from __future__ import annotations

from math import gcd

from celery_throttle.algorithms.state import divided_up
from celery_throttle.errors import LimitValueError
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import MAX_PERIOD_US, Rate


def share(limit: Limit, workers: int, cost: int = MILLION) -> Limit | None:
    """One of ``workers`` equal parts of a rate; whatever its algorithm, spread evenly over time.

    All parts together admit in any time no more than the rate emits, and a burst besides: of each
    part as much as the burst divided by the workers, rounded down, but at least ``cost``
    (millionths of a unit), or a task would wait for ever. None where a part is too small to be
    counted, such as less than a unit in 366 days.
    """
    assert isinstance(limit.rate, Rate)  # noqa: S101  # slots are shared by those who count them
    # Nobody hears of answers meanwhile, so an adaptive limit goes by its lower bound.
    count, period = limit.lowest or limit.rate.count, limit.rate.period_us * workers
    divisor = gcd(count, period)
    count, period = count // divisor, period // divisor
    if period > MAX_PERIOD_US:
        count, period = count * MAX_PERIOD_US // period, MAX_PERIOD_US
    if not count:
        return None
    # A window begins empty and a queue is none of those that wait elsewhere: they have no burst.
    burst = limit.burst // workers if limit.algorithm in _WITH_BURST else 0
    try:
        return Limit(Rate(count, period), max(burst, divided_up(cost, MILLION), 1))
    except LimitValueError:
        return None


_WITH_BURST = ("gcra", "token-bucket", "leaky-bucket", "adaptive")
