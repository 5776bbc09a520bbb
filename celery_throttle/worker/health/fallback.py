"""What one worker decides by itself while it cannot ask the server, as each limit says.

``local``: it enforces its share, see :mod:`celery_throttle.algorithms.share`, and begins as if all
of it had just been used up: what the server admitted a moment ago nobody here knows. ``open``: the
limit does not count. ``closed``: nothing passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

from celery_throttle.algorithms.local import LocalLimits
from celery_throttle.algorithms.share import make_share
from celery_throttle.algorithms.state import ceil_div
from celery_throttle.limits.cost import MILLION, to_units
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Rate
from celery_throttle.limits.requirement import Requirement, has_slots

#: Microseconds between two looks for a slot.
_LOOK = 100_000

#: Microseconds from one task to the next of those that wait until this begins to decide.
_APART = 100

#: Names and keys that are remembered; beyond, all begin anew, used up.
_KEPT = 10_000


class Fallback:
    """Decides from when the server was lost until it is back.

    Args:
        limits: in force when it was lost: by name, and by name and key where these have their own.
        workers: how many live then, this one included.
        held: how many slots of a name and key the tasks of this worker hold.
        begins: the monotonic time in microseconds before which it takes nothing from limits that
            count: until then it may hear how many workers there are.
        pauses: names that are paused, and until when in monotonic seconds; infinity until they are
            resumed.
    """

    def __init__(
        self,
        limits: Mapping[LimitRef, Sequence[Limit]],
        workers: int,
        held: Callable[[LimitRef], int],
        begins: int = 0,
        pauses: Mapping[str, float] | None = None,
    ) -> None:
        self._limits = limits
        self._workers = max(1, workers)
        self._held = held
        self._begins = begins
        self._pauses = pauses or {}
        self._begin()

    def _begin(self) -> None:
        self._local = LocalLimits()
        self._shares: dict[LimitRef, tuple[Limit, ...]] = {}
        #: When (us) the last of those that wait may try.
        self._last: dict[LimitRef, int] = {}

    def wait(self, need: Requirement, now: int, *, waited: bool) -> int | None:
        """Take what a task needs, or tell when it may try again.

        Args:
            need: its limits and costs.
            now: a monotonic time in microseconds.
            waited: whether it has waited as long as it was told before.

        Returns:
            0: taken, it may run. Else microseconds, more for each that waits at a limit. None: not
            before the server is back.
        """
        if len(self._shares) >= _KEPT:
            self._begin()
        counting = {ref: self._counting(ref) for ref in need.refs}
        if any(limit.outage == "closed" for limits in counting.values() for limit in limits):
            return None
        begins = max((self._begins_with(ref) for ref in need.refs if counting[ref]), default=0)
        if begins == inf:
            return None
        if now < begins:
            return self._turn(need, round(begins), _APART) - now
        costs, apart, wait = {}, 1, 0
        for ref, cost in zip(need.refs, need.costs, strict=True):
            limits = counting[ref]
            rates = [limit for limit in limits if not has_slots(limit)]
            slots = self._slots_left(ref, limits)
            if slots is None or not self._share(ref, rates, cost, now):
                return None
            wait = wait if slots else _LOOK
            if rates:
                costs[ref] = to_units(cost)
                apart = max(apart, *(_step(one, cost) for one in self._shares[ref]))
        if not wait and (waited or self._last_of(need) <= now):
            decision = self._local.acquire(costs, now) if costs else None
            if decision is None or decision.allowed:
                return 0
            wait = round((decision.retry_after or 0) * MILLION)
        return self._turn(need, now + wait, apart) - now

    def _begins_with(self, ref: LimitRef) -> float:
        """The time in microseconds before which it takes nothing from a limit."""
        return max(self._begins, self._pauses.get(ref.name, 0.0) * MILLION)

    def _last_of(self, need: Requirement) -> int:
        return max((self._last.get(ref, 0) for ref in need.refs), default=0)

    def _turn(self, need: Requirement, at: int, apart: int) -> int:
        """When a task may try: not before ``at``, and behind all that wait for its limits."""
        turn = max(at, self._last_of(need) + apart)
        self._last.update(dict.fromkeys(need.refs, turn))
        return turn

    def _counting(self, ref: LimitRef) -> list[Limit]:
        return [limit for limit in self._in_force(ref) if limit.outage != "open"]

    def _in_force(self, ref: LimitRef) -> Sequence[Limit]:
        own = self._limits.get(ref)
        return self._limits[LimitRef(ref.name, None)] if own is None else own

    def _slots_left(self, ref: LimitRef, limits: Sequence[Limit]) -> bool | None:
        """Whether this worker has a slot left, if any is needed. None: it has no share of them."""
        own = [limit.burst // self._workers for limit in limits if has_slots(limit)]
        return None if 0 in own else all(self._held(ref) < slots for slots in own)

    def _share(self, ref: LimitRef, limits: Sequence[Limit], cost: int, now: int) -> bool:
        """Put a share in force in which the cost fits. False: there is none."""
        if not limits:
            return True
        known = self._shares.get(ref)
        if known and all(cost <= one.burst * MILLION for one in known):
            return True
        shares = tuple(filter(None, (make_share(limit, self._workers, cost) for limit in limits)))
        if len(shares) < len(limits):
            return False
        self._shares[ref] = shares
        self._local.define(ref, shares, now)
        if known is None:
            self._local.use_up(ref, now)
        return True


def _step(limit: Limit, cost: int) -> int:
    """Microseconds from a task of some cost to the next."""
    assert isinstance(limit.rate, Rate)  # noqa: S101  # a share is one
    return ceil_div(cost * limit.rate.period_us, limit.rate.count * MILLION)
