"""What a worker knows about one task, from its message until the task leaves the worker.

Each request has one :class:`TaskState`. It has one of these statuses::

    RECEIVED, CLAIMED ──┬── gather ────► GATHERED ───┐
                        ├── defer ─────► DEFERRED ───┤ decided again
                        ├── delay ─────► DELAYED ────┘
                        ├── schedule ──► SCHEDULED ──┐ its time comes
                        ├── run ───────► RUNNING ◄───┘
                        ├── admit ─────► ADMITTED ── run ──► RUNNING
                        └── park ──────► PARKED          (left the worker)

    RUNNING ────────────┬── end ───────► ENDED           (left the worker)
                        └── step_out ──► STEPPED_OUT ──► as RECEIVED

A task with its own strategy is admitted before the strategy gets the message. The strategy may make
another request of the message, which then has the same state.

A task that steps out has met a limit in its body: it waits for that limit as well, then runs once
more. May import nothing but the claims and waits of this worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any

from celery_throttle.limits.key import LimitRef, check_name
from celery_throttle.limits.requirement import Requirement
from celery_throttle.tasks.context import Item
from celery_throttle.tasks.task_limits import TaskLimits
from celery_throttle.worker.claim import Claim
from celery_throttle.worker.wait import BrokerWait, Wait

#: Headers of messages that workers sent back or parked. The task never sees them.
REQUESTED_HEADER = "throttle_requested"
REFUSALS_HEADER = "throttle_refusals"
BROKER_WAIT_HEADER = "throttle_broker_wait"
BROKER_WAIT_BEGIN_HEADER = "throttle_broker_wait_begin"


class Status(Enum):
    """Where a task is; the diagram above shows the transitions."""

    RECEIVED = "received"  # its message came from the broker
    CLAIMED = "claimed"  # its message came from a line, under a claim
    GATHERED = "gathered"  # waits some milliseconds, to ask the server together with others
    DEFERRED = "deferred"  # waits for the next round of the worker's loop
    DELAYED = "delayed"  # waits in this worker, where there is no line for it
    SCHEDULED = "scheduled"  # its units are taken for a start at most 20 ms ahead
    ADMITTED = "admitted"  # it passed the gate, and its own strategy has the message
    RUNNING = "running"  # the pool has it
    STEPPED_OUT = "stepped out"  # it met a limit in its body, and is to run once more
    PARKED = "parked"  # it waits in its line, or was sent back to its queue
    ENDED = "ended"


class TaskState:
    """The state of one task in this worker.

    Headers of ours are taken out of the message of its request. What most tasks leave as it is
    costs them nothing here.
    """

    #: The claim under which this worker holds it; None if its message is the broker's.
    claim: Claim | None = None
    shard: Any = None  #: the shard that decides about it, once that was found
    status = Status.RECEIVED
    #: The fields of Celery's event ``task-received``, until it is sent; see `hooks/task_events.py`.
    receipt: dict[str, Any] | None = None
    #: Gives the message to the task's own strategy, with functions that acknowledge and reject it;
    #: None if the task has Celery's strategy, or its own has the message.
    strategy: Callable[[Any, Any], None] | None = None
    waited = False  #: whether it has waited since it was received, in this worker or elsewhere
    in_doubt = False  #: whether a call failed that may have parked the task
    waited_in_outage = False  #: whether it has waited for its share of a limit during an outage
    #: When it may come again from the broker (us, by the server's clock); 0 if that is unknown.
    broker_wait_until = 0
    broker_wait: BrokerWait | None = None  #: its wait at the broker, as long as it lasts
    requested: Sequence[Item] = ()  #: the limits that its runs requested in the body
    #: How often an API refused its runs, by the limits of the request.
    refusals: Mapping[str, int] = MappingProxyType({})
    requirement: Requirement | None = None  #: what its arguments require, once it was read
    required_by: TaskLimits | None = None  #: the limits by which it was read
    #: The limits that it declares together with those it requested, once they were joined; see
    #: `admission/requested_limits.py`.
    joined: tuple[TaskLimits | None, Sequence[Item], int] | None = None
    outcome = ""  #: how it ended, as Celery's event says; empty if it has not ended
    comes_again = False  #: whether it was requeued, so the outcome is not final
    _starts_at = 0.0

    def __init__(self, request: Any) -> None:
        headers = request.request_dict
        claim = getattr(request.message, "claim", None)
        if claim is not None:
            self.claim, self.status = claim, Status.CLAIMED
        if BROKER_WAIT_HEADER in headers:
            self.broker_wait_until = int(headers.pop(BROKER_WAIT_HEADER))
        if BROKER_WAIT_BEGIN_HEADER in headers:
            self.broker_wait = BrokerWait.read(headers.pop(BROKER_WAIT_BEGIN_HEADER))
        if REQUESTED_HEADER in headers:
            self.requested = _read_items(headers.pop(REQUESTED_HEADER))
        if REFUSALS_HEADER in headers:
            self.refusals = _read_counts(headers.pop(REFUSALS_HEADER))

    def gather(self) -> None:
        """The task asks the server together with others, some milliseconds later."""
        self.status = Status.GATHERED

    def defer(self) -> None:
        """The task is decided in the next round of the worker's loop."""
        self.status = Status.DEFERRED

    def delay(self, broker_wait_until: int = 0) -> None:
        """The task comes to the gate again later; see the attribute ``broker_wait_until``."""
        self.status = Status.DELAYED
        self.broker_wait_until = broker_wait_until

    def wait_at_broker(self, ref: LimitRef) -> None:
        """The task waits at the broker from now on, if it does not already."""
        self.broker_wait = self.broker_wait or BrokerWait(time.time(), ref.name, ref.key)

    def end_wait(self) -> Wait | None:
        """The task starts. Return its wait, if it has waited."""
        at_broker, self.broker_wait = self.broker_wait, None
        if self.claim is not None and self.claim.admitted:
            return self.claim.wait
        return None if at_broker is None else at_broker.end()

    def schedule(self, seconds: float) -> None:
        """The units of the task are taken for a start in some seconds."""
        self.status = Status.SCHEDULED
        self._starts_at = time.monotonic() + seconds

    def return_to_gate(self, horizon: float) -> float | None:
        """The task comes to the gate. Return the seconds until its start, if units are taken.

        None if they are not, or if the task should have started more than ``horizon`` seconds ago:
        then its units are lost.
        """
        scheduled = self.status is Status.SCHEDULED
        self.status = Status.RECEIVED if self.claim is None else Status.CLAIMED
        if not scheduled:
            return None
        now = time.monotonic()
        return max(0.0, self._starts_at - now) if now <= self._starts_at + horizon else None

    def admit(self) -> None:
        """The task has passed the gate, and its own strategy gets the message."""
        self.status, self.strategy = Status.ADMITTED, None

    def run(self) -> None:
        """The pool gets the task."""
        self.status = Status.RUNNING

    def step_out(self) -> None:
        """A run of the task is over, as it met a limit. What was taken for that run is used up."""
        self.status = Status.STEPPED_OUT
        self.waited = True
        if self.claim is not None:
            self.claim.admitted, self.claim.slots = False, ()

    def park(self) -> None:
        """The task waits elsewhere, and has left this worker."""
        self.status = Status.PARKED

    def end(self) -> None:
        """The task has left its process, or was not started after all."""
        if self.status is not Status.PARKED:
            self.status = Status.ENDED

    def message_headers(self) -> dict[str, Any]:
        """Return the headers that go with the message when it waits, for the next run."""
        all_headers = {
            REQUESTED_HEADER: self.requested,
            REFUSALS_HEADER: self.refusals,
            BROKER_WAIT_BEGIN_HEADER: self.broker_wait,
        }
        return {name: value for name, value in all_headers.items() if value}


class PassesGate:
    """The base of all requests that pass the gate."""

    throttle_state: TaskState


def _read_items(header: Any) -> Sequence[Item]:
    """Read requested limits from a header; nothing if the header is malformed."""
    try:
        items = [(check_name(name), key, int(cost)) for name, key, cost in header or ()]
    except (TypeError, ValueError):
        return ()
    sound = all(isinstance(key, (str, type(None))) and cost > 0 for _, key, cost in items)
    return tuple(items) if sound else ()


def _read_counts(header: Any) -> dict[str, int]:
    """Read counts of refusals from a header; nothing if the header is malformed."""
    if not isinstance(header, Mapping):
        return {}
    try:
        return {str(limits): int(times) for limits, times in header.items()}
    except (TypeError, ValueError):
        return {}
