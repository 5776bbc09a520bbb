"""What the wrappers of HTTP clients have in common: they learn from the headers of answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from celery_throttle.clients import answers
from celery_throttle.clients.answers import Said
from celery_throttle.clients.guarded_call import Outbound, Passage
from celery_throttle.errors import LimitValueError, shown
from celery_throttle.limiter_core import LimitHandles
from celery_throttle.limits.feedback import Heard
from celery_throttle.limits.requirement import Requirement

logger = logging.getLogger(__name__)

#: Seconds between two log lines about headers that make no sense.
COMPLAIN = 60.0


#: What limits count: of all of them, or by the name of the limit.
Units = str | Mapping[str, str]


class HttpOutbound(Outbound):
    """Calls of one HTTP client.

    Args:
        limit, key, cost, max_wait, usage: see :class:`Outbound`; the functions ``key`` and ``cost``
            take the client's request, ``usage`` its answer, of which all has been read.
        retry_429: how often a request is sent again that was refused (429, or 503 and 403 with
            ``Retry-After``), if its body can be sent again.
        unit: what the limits count: ``"requests"``, ``"tokens"``. Of what an API says is left, that
            of this unit counts; ``"requests"`` unless given. Of several limits it is a mapping of
            their names to units, and those that it does not name learn nothing: they are not the
            API's own. Without it several limits learn of refusals, but not of what is left.
    """

    def __init__(
        self,
        limit: LimitHandles,
        *,
        key: Callable[..., Any] | None = None,
        cost: Any = None,
        max_wait: float = 0.0,
        usage: Callable[[Any], Any] | None = None,
        unit: Units | None = None,
        retry_429: int = 0,
    ) -> None:
        super().__init__(
            limit, key=key, cost=cost, max_wait=max_wait, usage=usage, retry_429=retry_429
        )
        names = self.names()
        units = unit.values() if isinstance(unit, Mapping) else [unit or answers.REQUESTS]
        if unit == "" or not all(isinstance(one, str) and one for one in units):
            raise LimitValueError(f"unit {shown(unit)} is not allowed: such as 'requests'")
        unknown = sorted(set(unit) - set(names)) if isinstance(unit, Mapping) else []
        if unknown:
            raise LimitValueError(f"unit names {shown(unknown[0])}, which is no limit of these")
        if isinstance(unit, Mapping):
            self._units = dict(unit)
        elif unit is not None or len(names) == 1:
            self._units = dict.fromkeys(names, unit or answers.REQUESTS)
        else:
            self._units = {}
        self._learns = self._units if isinstance(unit, Mapping) else names
        self._complained = -COMPLAIN

    def learners(self, need: Requirement) -> Requirement | None:
        """Those limits that are the API's own."""
        both = zip(need.refs, need.costs, strict=True)
        found = [(ref, cost) for ref, cost in both if ref.name in self._learns]
        if len(found) == len(need.refs):
            return need
        return Requirement(*map(tuple, zip(*found, strict=True))) if found else None

    def heard(self, passage: Passage, status: int, headers: Mapping[str, str]) -> Heard:
        """What there is to learn of an answer."""
        said = answers.read(status, headers, time.time())
        if said.oddities:
            self._complain(said)
        return heard_of(said, self._units, passage.took())

    def _complain(self, said: Said) -> None:
        now = time.monotonic()
        if now - self._complained > COMPLAIN:
            self._complained = now
            names = ", ".join(map(repr, self.names()))
            logger.warning("Odd headers in an answer of %s: %s", names, "; ".join(said.oddities))


def heard_of(said: Said, units: Mapping[str, str], took: float) -> Heard:
    """What the limits are told, by the units that they count.

    Of several quotas of a unit, the one of which least is left counts. An API that says that
    nothing is left is not asked before there is more.
    """
    budgets = [budget for budget in said.budgets if budget.unit in units.values()]
    resets = [budget.reset for budget in budgets if budget.left == 0 and budget.reset is not None]
    stop = said.retry_after if said.retry_after is not None else max(resets, default=None)
    left = {
        name: min(budget.left for budget in budgets if budget.unit == unit)
        for name, unit in units.items()
        if any(budget.unit == unit for budget in budgets)
    }
    return Heard(refused=said.refused, stop=stop, left=left or None, took=took)
