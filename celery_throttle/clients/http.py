"""What the wrappers of HTTP clients have in common: they learn from the headers of answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from celery_throttle.clients import answers
from celery_throttle.clients.answers import Said
from celery_throttle.errors import LimitValueError, shown
from celery_throttle.heard import Heard
from celery_throttle.outbound import Limits, Outbound, Passage

logger = logging.getLogger(__name__)

#: Seconds between two log lines about headers that make no sense.
COMPLAIN = 60.0


class HttpOutbound(Outbound):
    """Calls of one HTTP client.

    Args:
        limit, key, cost, max_wait, usage: see :class:`Outbound`; the functions ``key`` and ``cost``
            take the client's request, ``usage`` its answer, of which all has been read.
        unit: what the limits count. Of what an API says is left, that of this unit counts:
            ``"requests"`` unless given, or ``"tokens"``.
    """

    def __init__(
        self,
        limit: Limits,
        *,
        key: Callable[..., Any] | None = None,
        cost: Any = None,
        max_wait: float = 0.0,
        usage: Callable[[Any], Any] | None = None,
        unit: str = answers.REQUESTS,
    ) -> None:
        super().__init__(limit, key=key, cost=cost, max_wait=max_wait, usage=usage)
        if not isinstance(unit, str) or not unit:
            raise LimitValueError(f"unit {shown(unit)} is not allowed: such as 'requests'")
        self._unit = unit
        self._complained = -COMPLAIN

    def heard(self, passage: Passage, status: int, headers: Mapping[str, str]) -> Heard:
        """What there is to learn of an answer."""
        said = answers.read(status, headers, time.time())
        if said.oddities:
            self._complain(said)
        return heard_of(said, self._unit, passage.took())

    def _complain(self, said: Said) -> None:
        now = time.monotonic()
        if now - self._complained > COMPLAIN:
            self._complained = now
            names = ", ".join(map(repr, self.names()))
            logger.warning("Odd headers in an answer of %s: %s", names, "; ".join(said.oddities))


def heard_of(said: Said, unit: str, took: float) -> Heard:
    """What the limits are told: of several quotas of a unit, the one of which least is left.

    An API that says that nothing is left is not asked before there is more.
    """
    budgets = [budget for budget in said.budgets if budget.unit == unit]
    resets = [budget.reset for budget in budgets if budget.left == 0 and budget.reset is not None]
    stop = said.retry_after if said.retry_after is not None else max(resets, default=None)
    left = min((budget.left for budget in budgets), default=None)
    return Heard(refused=said.refused, stop=stop, left=left, took=took)
