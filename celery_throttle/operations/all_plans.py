"""All plans for the limits of one prefix, in one class."""

from __future__ import annotations

from celery_throttle.operations.acquire import AcquirePlans
from celery_throttle.operations.feedback import FeedbackPlans
from celery_throttle.operations.reserve import ReservePlans
from celery_throttle.operations.slots import SlotPlans


class Plans(AcquirePlans, ReservePlans, FeedbackPlans, SlotPlans):
    """The plans of :class:`celery_throttle.limiter.Limiter`."""

    __slots__ = ()
