"""Decision: what a limiter answers."""

from __future__ import annotations

from math import inf
from typing import NamedTuple


class Decision(NamedTuple):
    """The answer to one request. It is true when the request is allowed.

    The examples continue one another: a limit ``"stripe"`` of ``"10/s burst 5"``, full at the
    start, is asked for 4 units and at once for 3 more. Times are seconds from the decision, by the
    server's clock, rounded up to the microsecond: who waits that long is not early. When several
    limits decide together, ``limit`` and ``remaining`` are those of the limit that binds; of the
    one with the least remaining when all allow.

    Attributes:
        allowed: Whether the units were taken (by a peek: whether they could be). True, then False.
            A refusal takes nothing, from none of the limits.
        limit: The capacity, that is the burst: the most that can ever pass at once. 5, and 5.
        remaining: The whole units that could pass right now, after this decision. 1, and still 1.
        retry_after: The time until this same request could pass, if nobody takes units before.
            0.0 when allowed; then 0.2, as 2 of the 3 units are missing and one is emitted every
            0.1 s. None when nobody knows: the limit is paused until it is resumed.
        reset_after: The time until the limit is full again, if nobody takes units before; the
            longest one of several limits. 0.4, and 0.4; 0.0 when it is full. Infinity while one of
            them is paused until it is resumed.
        bound_by: The name of the limit that makes the request wait longest. None when allowed;
            then "stripe".
        granted: The units that were taken: the cost, or 0; of
            :meth:`~celery_throttle.limiter.Limiter.acquire_up_to` what there was. 4, then 0.
        delay: The time that has to pass before what was taken may start: above 0 in a
            ``leaky-queue``, which takes what comes later, and with ``max_wait``, where it has
            passed already. 0.0, and 0.0.
        paused: The time for which the limit of ``bound_by`` is paused, itself or this key of it.
            0.0 when it is not, and when the request is allowed: 0.0, and 0.0; after a
            ``pause(30)`` both requests would be refused, with 30.0 here and as ``retry_after``.
            Infinity until it is resumed.
    """

    allowed: bool
    limit: int
    remaining: int
    retry_after: float | None
    reset_after: float
    bound_by: str | None
    granted: int | float = 0
    delay: float = 0.0
    paused: float = 0.0

    def __bool__(self) -> bool:
        return self.allowed

    def while_paused(self, seconds: float) -> Decision:
        """The same refusal by a limit that is paused for so long."""
        if seconds == inf:
            return self._replace(retry_after=None, reset_after=inf, paused=inf)
        return self._replace(paused=seconds)
