"""What the readers of the status use."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limits
from celery_throttle.operations.plan import Clock, Plan
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import Argument, Call, script


@dataclass(frozen=True, slots=True)
class Observer:
    """The limits of one prefix, for those who read their status and change no limit.

    Each plan of this package is a function whose first argument is an observer.
    """

    limits: Mapping[str, Limits]  #: of the code
    keys: Keys
    clock: Clock | None  #: replaces the server's
    #: Makes the plan that raises UnknownLimitError if neither the code nor the server has a limit.
    check_known: Callable[[LimitRef], Plan[None]]
    has_server: bool = True  #: if not, no task waits

    def now(self) -> Argument:
        """Return the time as an argument of a script: empty for the server's own."""
        return "" if self.clock is None else self.clock.now

    def local_time(self) -> int:
        """Return the time in microseconds by the clock, or else by this machine's."""
        return time.time_ns() // 1000 if self.clock is None else self.clock.now


def read_keys(observer: Observer, *commands: tuple[Argument, ...]) -> Plan[tuple[int, list[Any]]]:
    """Run commands that only read, in one step: tuples of a name, a key and arguments.

    Returns the server's time in microseconds, and the reply of each command.
    """
    args = [observer.now()]
    for name, _, *rest in commands:
        args += [name, len(rest), *rest]
    now, *replies = yield Call(script("read"), [str(key) for _, key, *_ in commands], args)
    return int(now), replies
