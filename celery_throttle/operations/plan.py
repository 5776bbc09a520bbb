"""Plans: operations on limits without I/O, written once for blocking code and for asyncio.

A plan is a generator. It yields a :class:`~celery_throttle.store.script.Call` to run on the server,
or another :data:`Action`, and returns its result. If a call has no reply, its ``StoreError`` is
raised in the plan. :mod:`celery_throttle.limiter.core` executes plans; a worker's gate executes
several plans in one round trip, see ``worker/admission/batching.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.rate import MAX_UNITS
from celery_throttle.limits.requirement import Requirement
from celery_throttle.store.client import Store
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import Argument, Call, script

S = TypeVar("S")
T = TypeVar("T")

#: A cost above any burst. Larger costs are sent as this one: they may have too many digits.
MAX_COST = (MAX_UNITS + 1) * MILLION


@dataclass(frozen=True, slots=True)
class Sleep:
    """A step of a plan that waits for some seconds.

    0 seconds announce that the plan may wait later. A caller that must not block is refused there.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class StoreCall:
    """A step of a plan that runs a call on the server of one shard."""

    store: Store
    call: Call


@dataclass(frozen=True, slots=True)
class Blocking:
    """A step of a plan that calls a function which may block; asyncio calls it in a thread.

    What the function returns is the result of the step.
    """

    function: Callable[[], Any]


#: What a plan yields.
Action = Call | StoreCall | Sleep | Blocking

Plan = Generator[Action, Any, T]


def translate(plan: Plan[T], step_of: Callable[[Action], S]) -> Generator[S, Any, T]:
    """Carry out a plan by the steps that ``step_of`` makes of its actions.

    The error of a step is raised in the plan.
    """
    resume: Callable[[Any], Action] = plan.send
    result: Any = None
    while True:
        try:
            action = resume(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # StopIteration is not generic
        resume = plan.send
        try:
            result = yield step_of(action)
        except BaseException as error:  # noqa: BLE001  # the plan decides
            resume, result = plan.throw, error


def on_store(store: Store, plan: Plan[T]) -> Plan[T]:
    """Return a plan whose calls run on the server of one shard."""
    return translate(
        plan, lambda action: StoreCall(store, action) if isinstance(action, Call) else action
    )


class Clock(Protocol):
    """A clock that replaces the server's; :class:`celery_throttle.testing.ManualClock` is one.

    Attributes:
        now: The time in microseconds.
    """

    now: int  #: microseconds

    def advance(self, seconds: float) -> None:
        """Advance the clock. A call that waits uses this instead of a sleep.

        Args:
            seconds: Seconds, 0 or more.
        """


class Fence(Protocol):
    """What a context uses of :class:`celery_throttle.operations.shards.ShardFence`."""

    def assign(self, names: Iterable[str], least: int = 0) -> Plan[int]:
        """Assign limits to the shard if they are nowhere."""

    def repeat(self, context: PlanContext, names: Iterable[str]) -> Plan[None]:
        """Repeat that limits are in the shard."""


@dataclass(frozen=True, slots=True)
class ReadContext:
    """What plans use that only read the limits of one prefix."""

    limits: Mapping[str, Limits]  #: of the code
    keys: Keys
    clock: Clock | None  #: replaces the server's

    def now(self) -> Argument:
        """Return the time as an argument of a script: empty for the server's own."""
        return "" if self.clock is None else self.clock.now

    def local_time(self) -> int:
        """Return the time in microseconds by the clock, or else by this machine's."""
        return time.time_ns() // 1000 if self.clock is None else self.clock.now

    def call(self, name: str, keys: Sequence[str], *args: Argument) -> Call:
        """Return the call of a script whose first argument is the time."""
        return Call(script(name), keys, [self.now(), *args])


@dataclass(frozen=True, slots=True)
class PlanContext(ReadContext):
    """What plans use that change the limits of one prefix.

    Limits of the code are registered if the server does not know them. ``restore`` makes the plan
    that runs before that: it puts the rules file in force. In any shard but the home shard,
    ``fence`` makes the plan that runs before limits are defined.
    """

    restore: Callable[[], Plan[None]] | None = None
    fence: Fence | None = None

    def assigned_epoch(self, names: Iterable[str]) -> Plan[int]:
        """Let the home shard assign limits to this shard; return the epoch of its answer.

        In the home shard that is 0, and no call is made. Raises as the plan of ``fence``.
        """
        return 0 if self.fence is None else (yield from self.fence.assign(names))


def ref_arguments(keys: Keys, requirement: Requirement) -> tuple[list[str], list[Argument]]:
    """Return the keys and arguments of limits as ``requirements.lua`` reads them."""
    refs = requirement.refs
    if has_keys(refs):
        states = [name for ref in refs for name in keys.decision(ref)]
        fields = [name for ref in refs for name in (keys.field(ref), ref.name)]
    else:
        states = [name for ref in refs for name in (keys.state(ref), keys.pause(ref))]
        fields = [ref.name for ref in refs]
    costs = [min(cost, MAX_COST + cost % MILLION) for cost in requirement.costs]
    return [*states, *(keys.entries(ref) for ref in refs)], [*fields, *costs]


def read_call(now: Argument, *commands: tuple[Argument, ...]) -> Call:
    """Return the call that runs commands which only read: tuples of a name, a key and arguments.

    Its reply is the server's time in microseconds, and the reply of each command. ``now``:
    microseconds; empty for the server's time.
    """
    args = [arg for name, _, *rest in commands for arg in (name, len(rest), *rest)]
    return Call(script("read"), [str(key) for _, key, *_ in commands], [now, *args])


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the items in their order, at most ``size`` at once: what one call may have."""
    return (items[start : start + size] for start in range(0, len(items), size))


def has_keys(refs: Sequence[LimitRef]) -> bool:
    """Whether one of them is a key of its limit."""
    return any(ref.key is not None for ref in refs)
