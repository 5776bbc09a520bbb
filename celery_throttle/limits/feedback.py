"""Feedback: what the answer of an API says about one limit that its request passed."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from celery_throttle.errors import LimitValueError, shown
from celery_throttle.limits.duration import check_duration

#: Seconds for which the first refusal or overload in a row stops a limit if the answer gives no
#: time; of a refusal by an adaptive limit, which also lowers its rate, the second number.
DEFAULT_STOP_SECONDS, ADAPTIVE_STOP_SECONDS = 1.0, 0.1


@dataclass(frozen=True, slots=True)
class Feedback:
    """Feedback from one answer of an API. No limit admits more than its definition for it.

    Attributes:
        refused: Whether the API refused the request because of this limit. Default False.
        overloaded: Whether the API refused the request because it has too little capacity now, as
            with the status 529. An adaptive rate stays then; adaptive slots become fewer if the API
            accepted a request since the last decrease. Default False.
        stop: Seconds for which the API asked for no more requests, 0 to 1e9. None (the default):
            the API gave no time. After a refusal or an overload, None stops the limit for one
            second (an adaptive limit, after a refusal, for 0.1 seconds), and for longer each time
            until the API accepts a request: up to five minutes.
        left: Whole units that are left of the API's quota. None (the default): unknown.
        limit: Units of the API's whole quota. An adaptive limit sets its rate to it, within its
            range, each time it changes. None (the default): unknown.
        period: Seconds in which the API allows ``limit``. None (the default): the period of the
            limit's own rate.
        took: Seconds from the request to the answer; default 0.0. None: the answer says nothing
            about the rate, as that to a request with a revoked key.

    Raises:
        LimitValueError: ``stop`` is out of range, or another value is no number, negative or not
            finite.

    Example:
        >>> limiter = Limiter("memory://", {"api": "10/s"})
        >>> limiter["api"].learn(Feedback(refused=True, stop=3.0))
        3.0
    """

    refused: bool = False
    overloaded: bool = False
    stop: float | None = None
    left: int | None = None
    limit: int | None = None
    period: float | None = None
    took: float | None = 0.0

    def __post_init__(self) -> None:
        if self.stop is not None:
            object.__setattr__(self, "stop", check_duration(self.stop, "a stop"))
        for name in ("left", "limit", "period", "took"):
            number = getattr(self, name)
            is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
            if number is not None and not (is_number and 0 <= number < inf):
                raise LimitValueError(f"{name} {shown(number)} is not allowed; allowed: 0 or more")
