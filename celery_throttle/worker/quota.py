"""Takes quota for tasks at the gate, with as few round trips as that allows.

Three ways beside asking for one task when it has a process. A block of units, for a limit that is
passed many times a second (``blocks.py``). One round trip for a task and for those that will have
a process right after it. And none for a limit that was full a moment ago. What is taken for a task
that has no process yet is good for 20 ms, so its start is never later after its admission.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery.worker import state

from celery_throttle.errors import ThrottleError
from celery_throttle.plans import MICROSECONDS, Outcome, Want, to_us
from celery_throttle.scope import LimitRef
from celery_throttle.worker.blocks import HORIZON, Block, Demand
from celery_throttle.worker.request import GatedRequest

if TYPE_CHECKING:
    from celery_throttle.app import Throttle

Refs = tuple[LimitRef, ...]

#: Limits and keys of which blocks, and that they were full, are remembered.
REMEMBERED = 1024

#: Tasks asked for together with one, at most.
BATCH = 7


class Quota:
    """What one worker takes.

    Args:
        throttle: the app's limits.
        waiting: requests that wait for a process, the next first.
    """

    def __init__(self, throttle: Throttle, waiting: Callable[[], Iterable[Any]]) -> None:
        self._throttle = throttle
        self._waiting = waiting
        self._blocks: dict[tuple[Refs, int], Block] = {}
        self._demand = Demand()
        self._full: dict[Refs, float] = {}

    def taken_before(self, request: Any) -> float | None:
        """Seconds until the slot that was taken for a request, if it is good still."""
        slot: float | None = request.__dict__.pop("throttle_slot", None)
        now = time.monotonic()
        if slot is None or now > slot + HORIZON:
            return None
        self._demand.count(None, now)
        return max(0.0, slot - now)

    def take(self, refs: Refs, cost: int) -> float | None:
        """Take quota: seconds until its slot, or None if there is none within 20 ms.

        Raises:
            StoreError, ThrottleError: see :meth:`celery_throttle.plans.Plans.gate`.
        """
        now = time.monotonic()
        if self._full.get(refs, 0.0) > now:
            return None
        wanted = self._demand.count(refs, now) if len(refs) == 1 else 1
        block = self._blocks.get((refs, cost))
        wait = block.use(now) if block else None
        if wait is None:
            reply = self._ask(Want(refs, cost, wanted), now)
            if reply[0] == Outcome.REFUSED:
                _remember(self._full, refs, now + HORIZON)
                return None
            block = _block(reply)
            wait = block.use(block.taken)
            if block.units > 1:
                _remember(self._blocks, (refs, cost), block)
        return wait

    def is_free(self, refs: Refs) -> None:
        """Units were free after all."""
        self._full.pop(refs, None)

    def _ask(self, want: Want, now: float) -> list[int]:
        soon = self._soon(want, now)
        wants = [want, *soon.values()]
        plan = self._throttle.plans.gate(wants, to_us(HORIZON))
        reply, *others = self._throttle.run_plan(plan)
        for request, other in zip(soon, others, strict=True):
            if other[0] == Outcome.ALLOWED:
                block = _block(other)
                request.throttle_slot = block.taken + block.later
        return reply

    def _soon(self, want: Want, now: float) -> dict[Any, Want]:
        """Tasks that wait for a process and will have one within 20 ms, as fast as they go now.

        None of them shares a limit and key with another: that is for blocks.
        """
        most = min(BATCH, self._demand.count(None, now) // 3)
        soon: dict[Any, Want] = {}
        if most == 0 or state.revoked_stamps:
            return soon
        named = set(want.refs)
        for request in self._waiting():
            if len(soon) == most:
                break
            limits = self._throttle.task_limits(request.task) if _is_certain(request) else None
            if limits is None:
                continue
            with suppress(ThrottleError):  # it is raised again when the task has its turn
                refs = limits.refs(request.args, request.kwargs)
                if named.isdisjoint(refs) and refs not in self._full:
                    named.update(refs)
                    soon[request] = Want(refs, limits.cost)
        return soon


def _block(reply: list[int]) -> Block:
    _, units, at_once, later, step, per = reply
    wait, apart = later / MICROSECONDS, step / per / MICROSECONDS
    return Block(time.monotonic(), units, at_once, wait, apart)


def _remember(things: dict[Any, Any], key: Any, value: Any) -> None:
    if len(things) > REMEMBERED:
        things.clear()
    things[key] = value


def _is_certain(request: Any) -> bool:
    """Whether a request is sure to ask for its limits at its turn: neither revoked nor expired."""
    return (
        issubclass(type(request), GatedRequest)
        and not hasattr(request, "throttle_slot")
        and not hasattr(request.message, "claim")
        and request.expires is None
        and request.id not in state.revoked
        and not request.delivery_info.get("redelivered")
    )
