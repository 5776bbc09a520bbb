"""Decision: the answer of a limiter to one request."""

from __future__ import annotations

from math import inf
from typing import NamedTuple


class Decision(NamedTuple):
    """The answer to one request. It is true if the request is allowed.

    The examples continue one another: two requests to the limit ``"stripe"`` of ``"10/s burst 5"``,
    which has its full burst at the start. The first takes 4 units; the second requests 3 more at
    the same moment. Times are seconds from the decision by the server's clock, rounded up to the
    microsecond, so that a request repeated after that time is not early. If several limits decide
    together, ``burst`` and ``remaining`` belong to the limit that refuses, or, if all allow, to the
    limit with the least remaining.

    Attributes:
        allowed: Whether the units were taken (of a peek: whether they could be). True, then False.
            A refusal takes nothing from any limit.
        burst: The most units that can ever pass at once. 5, and 5.
        remaining: The whole units that could pass right after this decision. 1, and still 1.
        retry_after: The time until the same request could pass if no other request takes units
            before. 0.0 if allowed; then 0.2, since 2 of the 3 units are missing and one is emitted
            every 0.1 s. None if the limit is paused until it is resumed.
        reset_after: The time until the full burst is available again if no other request takes
            units before; the longest of several limits. 0.4, and 0.4; 0.0 if it is available.
            Infinity while one of the limits is paused until it is resumed.
        limited_by: The name of the limit for which the request would wait longest. None if allowed;
            then "stripe".
        granted: The units that were taken: the cost, or 0. After
            :meth:`~celery_throttle.Limiter.acquire_up_to`, the units that were available. 4, then
            0.
        delay: The time after which the request may start, above 0 for a ``leaky-queue`` only. With
            ``max_wait``, that time has already passed; after ``try_acquire(max_wait=None)``, the
            caller has to wait for it. 0.0, and 0.0.
        paused: The time for which the limit ``limited_by``, or this key of it, is paused. 0.0 if it
            is not paused, and if the request is allowed: 0.0, and 0.0. After ``pause(30)`` both
            requests would be refused, with 30.0 here and as ``retry_after``. Infinity if it is
            paused until it is resumed.

    Example:
        >>> limiter = Limiter("memory://", {"stripe": "10/s burst 5"})
        >>> decision = limiter["stripe"].acquire(4)
        >>> bool(decision), decision.burst, decision.remaining, decision.granted
        (True, 5, 1, 4)
    """

    allowed: bool
    burst: int
    remaining: int
    retry_after: float | None
    reset_after: float
    limited_by: str | None
    granted: int | float = 0
    delay: float = 0.0
    paused: float = 0.0

    @classmethod
    def allowance(cls, granted: float, burst: int = 0) -> Decision:
        """Return an allowance that no limit has decided; ``burst`` units remain.

        :meta private:
        """
        return cls(
            allowed=True,
            burst=burst,
            remaining=burst,
            retry_after=0.0,
            reset_after=0.0,
            limited_by=None,
            granted=granted,
        )

    def __bool__(self) -> bool:
        return self.allowed

    def with_pause(self, seconds: float) -> Decision:
        """Return this refusal as that of a limit that is paused for ``seconds``.

        :meta private:
        """
        if seconds == inf:
            return self._replace(retry_after=None, reset_after=inf, paused=inf)
        return self._replace(paused=seconds)
