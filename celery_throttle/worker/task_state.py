"""What a worker knows about one task, from its message until the task leaves the worker.

Each request has one :class:`TaskState`. It has one of these statuses::

    RECEIVED ──┬──► QUEUED ────┐
               ├──► DEFERRED ──┤ arrive_at_gate
               ├──► DELAYED ───┴────► RECEIVED
               ├──► BOOKED ────┐ its start comes
               ├──► ADMITTED ◄─┘
               └──► PARKED            (left the worker)

    CLAIMED ──────► ADMITTED

    ADMITTED ──┬──────────────────► RUNNING
               └──► IN_STRATEGY ──► RUNNING

    RUNNING ───┬──► STEPPED_OUT ──► DEFERRED
               └──► ENDED             (left the worker)

What the diagram leaves out: a task may end before it runs; an error delays any task that does not
run yet; a delayed task may be sent back to its queue, which parks it; a booked task that missed its
start is decided about once more. Other transitions are refused. A claimed task whose units were
not taken with it (it was revoked, say) begins as RECEIVED.

A task with its own strategy is admitted before the strategy gets the message. The strategy may make
another request of the message, which then has the same state.

A task steps out if a limit refuses in its body: it waits for that limit, then runs once more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple

from billiard.einfo import ExceptionInfo
from celery.worker import state

from celery_throttle.errors import ConfigurationError, StoreError
from celery_throttle.limits.key import LimitRef, check_name
from celery_throttle.limits.requirement import Requirement
from celery_throttle.operations.acquire import Taken
from celery_throttle.tasks.context import STATE_HEADER
from celery_throttle.tasks.step_out import Item
from celery_throttle.tasks.task_limits import TaskLimits
from celery_throttle.worker.claim import Claim, Wait
from celery_throttle.worker.start import Start


class Status(Enum):
    """Where a task is, which is also what a decision of the gate says.

    The diagram above shows the transitions.
    """

    RECEIVED = "received"  # at the gate, without units
    CLAIMED = "claimed"  # its message came from a line, together with its units
    QUEUED = "queued"  # waits for a process of the pool
    DEFERRED = "deferred"  # waits for a round of the worker's loop, which decides about several
    DELAYED = "delayed"  # waits in this worker, where there is no line for it
    BOOKED = "booked"  # its units are taken for a start at most 20 ms ahead
    ADMITTED = "admitted"  # it passed the gate, and starts now
    IN_STRATEGY = "in its strategy"  # its own strategy has the message
    RUNNING = "running"  # the pool has it
    STEPPED_OUT = "stepped out"  # a limit refused in its body, and it is to run once more
    PARKED = "parked"  # it waits in its line, or was sent back to its queue
    ENDED = "ended"

    __hash__ = object.__hash__  # each start looks some statuses up: by identity, without a call


#: The task waits in this worker, and is not on its way to a process.
WAITING_HERE = (Status.QUEUED, Status.DEFERRED, Status.DELAYED, Status.STEPPED_OUT)
_AT_GATE = (Status.RECEIVED, Status.CLAIMED)
_RETURNING = (Status.QUEUED, Status.DEFERRED, Status.DELAYED, Status.BOOKED)

#: From which statuses a task may come into each.
_SOURCES: Mapping[Status, tuple[Status, ...]] = {
    Status.RECEIVED: _RETURNING,
    Status.QUEUED: (Status.RECEIVED,),
    Status.DEFERRED: (Status.RECEIVED, Status.STEPPED_OUT),
    Status.DELAYED: (*_AT_GATE, *_RETURNING, Status.STEPPED_OUT),
    Status.BOOKED: (Status.RECEIVED,),
    Status.ADMITTED: (Status.BOOKED, Status.RECEIVED, Status.CLAIMED),
    Status.IN_STRATEGY: (Status.ADMITTED,),
    Status.RUNNING: (Status.ADMITTED, Status.IN_STRATEGY),
    Status.STEPPED_OUT: (Status.RUNNING,),
    Status.PARKED: (Status.RECEIVED, Status.DELAYED),
}


class TransitionError(RuntimeError):
    """A task cannot come from its status into another one: a mistake in this package."""


class BrokerWait(NamedTuple):
    """A wait at the broker. It is a header of the message, as a list."""

    began: float  #: seconds since the epoch, by the clock of the worker that refused the task first
    name: str  #: of the limit that refused it
    key: str | None

    def end(self) -> Wait:
        """Return the wait, which is over now."""
        return Wait(LimitRef(self.name, self.key), 0, max(0.0, time.time() - self.began))


class TaskState:
    """The state of one task in this worker.

    Headers of ours are taken out of the message of its request. What most tasks leave as it is
    costs them nothing here. :meth:`move`, and each method that calls it, returns the new status,
    and raises :class:`TransitionError` where the diagram has no such transition.
    """

    #: The claim under which this worker holds it; None if its message is the broker's.
    claim: Claim | None = None
    shard: Any = None  #: the shard that decides about it, once that was found
    #: Why no shard can decide about it; None if one can.
    shard_error: ConfigurationError | StoreError | None = None
    status = Status.RECEIVED
    #: The fields of Celery's event ``task-received``, until it is sent; see `announcements.py`.
    receipt: dict[str, Any] | None = None
    #: Gives the message to the task's own strategy, with functions that acknowledge and reject it;
    #: None if the task has Celery's strategy, or its own has the message.
    strategy: Callable[[Any, Any], None] | None = None
    #: Its wait in a line, until it starts.
    wait: Wait | None = None
    waited = False  #: whether it has waited since it was received, in this worker or elsewhere
    in_doubt = False  #: whether a call failed that may have parked the task
    lacked_process = False  #: whether a call would have let it start if it had had a process
    waited_in_outage = False  #: whether it has waited for its share of a limit during an outage
    #: When it may come again from the broker (us, by the server's clock); 0 if that is unknown.
    broker_wait_until = 0
    broker_wait: BrokerWait | None = None  #: its wait at the broker, as long as it lasts
    start: Start | None = None  #: its booked start, until that comes or its units are given back
    takes: Sequence[Taken] = ()  #: what was taken for its run, if that settles
    settles = False  #: whether the run settles what its last run requested
    requested: Sequence[Item] = ()  #: the limits that refused its last run in the body
    #: What was computed for it, if functions decide about its limits; None if nothing was so far.
    computed: Sequence[Item] | None = None
    function_call: Any = None  #: the call of its functions in a thread, as long as it lasts
    #: How often an API refused its runs, by the limits of the request.
    refusals: Mapping[str, int] = MappingProxyType({})
    requirement: Requirement | None = None  #: what its arguments require, once it was read
    required_by: TaskLimits | None = None  #: the limits by which it was read
    #: The limits that it declares together with those it requested, once they were joined; see
    #: `admission/request_limits.py`.
    joined: tuple[TaskLimits | None] | None = None
    outcome = ""  #: how it ended, as Celery's event says; empty if it has not ended
    comes_again = False  #: whether it was requeued, so the outcome is not final

    def __init__(self, request: Any) -> None:
        headers = request.request_dict
        claim: Claim | None = getattr(request.message, "claim", None)
        if claim is not None:
            self.claim, self.wait, self.takes = claim, claim.wait, claim.takes
            self.status = Status.CLAIMED if claim.has_units else Status.RECEIVED
        if STATE_HEADER in headers:
            with suppress(AttributeError, OverflowError, TypeError, ValueError):  # malformed
                self._restore(headers.pop(STATE_HEADER))

    def _restore(self, header: Mapping[str, Any]) -> None:
        if "computed" in header:
            self.computed = _read_items(header["computed"])
        self.requested = _read_items(header.get("requested", ()))
        self.settles = bool(header.get("settles"))
        refusals = header.get("refusals", {})
        self.refusals = {str(limits): int(times) for limits, times in refusals.items()}
        self.broker_wait_until = int(header.get("broker_wait_until", 0))
        if "broker_wait" in header:
            began, *ref = header["broker_wait"]
            self.broker_wait = BrokerWait(float(began), *_check_ref(*ref))

    def leave_shard(self) -> None:
        """Let its shard be found anew: its limits have changed, or are in another shard."""
        self.shard = self.shard_error = None

    def move(self, status: Status) -> Status:
        """Move the task into a status."""
        if self.status not in _SOURCES[status]:
            raise TransitionError(
                f"a task that is {self.status.value} cannot become {status.value}"
            )
        self.status = status
        return status

    def arrive_at_gate(self) -> Status:
        """The task comes to the gate: with its units, or as it was received.

        It is too late for a start more than 20 ms ago, whose units are to be given back.
        """
        if self.status in _AT_GATE:
            return self.status
        start = self.start
        if self.status is Status.BOOKED and start and time.monotonic() <= start.until:
            return self.status
        return self.move(Status.RECEIVED)

    def delay(self, broker_wait_until: int = 0) -> Status:
        """The task comes to the gate again later; see the attribute ``broker_wait_until``."""
        self.broker_wait_until = broker_wait_until
        return self.move(Status.DELAYED)

    def book(self, start: Start) -> Status:
        """The units of the task are taken for a start."""
        self.start = start
        return self.move(Status.BOOKED)

    def book_now(self) -> Status:
        """The task may start without units of the server."""
        return self.book(Start(time.monotonic()))

    def start_booked(self) -> Status:
        """The task starts now, and uses the units that were taken for it."""
        status = self.move(Status.ADMITTED)
        start, self.start = self.start, None
        if start is not None:
            self.takes = start.use()
        return status

    def park(self) -> Status:
        """The task waits elsewhere, and has left this worker."""
        return self.move(Status.PARKED)

    def step_out(self) -> Status:
        """A run of the task is over, as a limit refused. What was taken for that run is used up."""
        self.waited = True
        return self.move(Status.STEPPED_OUT)

    def end(self) -> Status:
        """The task has left its process, or was not started after all."""
        if self.status is not Status.PARKED:
            self.status = Status.ENDED
        return self.status

    # Waits.

    def wait_at_broker(self, ref: LimitRef) -> None:
        """The task waits at the broker from now on, if it does not already."""
        self.broker_wait = self.broker_wait or BrokerWait(time.time(), ref.name, ref.key)

    def end_wait(self) -> Wait | None:
        """The task starts. Return its wait, if it has waited."""
        at_broker, self.broker_wait = self.broker_wait, None
        in_line, self.wait = self.wait, None
        if in_line is None and at_broker is not None:
            return at_broker.end()
        return in_line

    def message_headers(self) -> dict[str, Any]:
        """Return the headers that go with the message when it waits, for the next run."""
        fields = {
            "requested": self.requested,
            "settles": self.settles,
            "refusals": self.refusals,
            "broker_wait": self.broker_wait,
            "broker_wait_until": self.broker_wait_until,
        }
        fields = {name: value for name, value in fields.items() if value}
        if self.computed is not None:  # no limit is a result, too
            fields["computed"] = self.computed
        return {STATE_HEADER: fields} if fields else {}


def _check_ref(name: str, key: str | None) -> LimitRef:
    if not isinstance(key, (str, type(None))):
        raise TypeError("the key of a limit is a text or None")
    return LimitRef(check_name(name), key)


def _read_items(header: Any) -> Sequence[Item]:
    items = tuple((*_check_ref(name, key), int(cost)) for name, key, cost in header)
    if any(cost <= 0 for _, _, cost in items):
        raise ValueError("a cost is above 0")
    return items


def may_be_revoked(request: Any) -> bool:
    """Return whether ``request.revoked()`` may be true, which it rarely is and which costs more."""
    return bool(request.expires is not None or request.id in state.revoked or state.revoked_stamps)


@contextmanager
def ending(request: Any) -> Iterator[None]:
    """Let Celery end a request that does not run. After an error, it is as before.

    Celery counts it as ended before it stores that, which fails without a result backend. Then the
    request may come again, unless Celery had dropped it.
    """
    task: TaskState = request.throttle_state
    status, is_reserved = task.status, request in state.reserved_requests
    try:
        yield
    except Exception:
        task.status = status
        if is_reserved:
            state.task_reserved(request)
        raise


def fail(request: Any, error: Exception) -> None:
    """Fail a task at once, without a process: errbacks, chord and signal, as if it had lost one."""
    try:
        raise error
    except type(error):
        request.on_failure(ExceptionInfo(), return_ok=False)
    request.acknowledge()
