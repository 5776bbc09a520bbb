"""The capacity of a limit from now on: stored units, then a rate, or window by window."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

#: Differences below this share of a unit, or of the burst, are rounding errors.
EPSILON = 1e-9

#: The time in which stored units pass.
MOMENT_SECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a limit admits from now on."""

    name: str
    rate: float  #: units per second, after all windows; 0.0 if it is paused until it is resumed
    stored: float = 0.0  #: units that can pass at once; negative if units are still owed
    burst: float = 1.0  #: units that it can store
    paused: float = 0.0  #: seconds in which nothing passes
    windows: tuple[tuple[float, float], ...] = ()  #: seconds until each begins, and its units

    def seconds_for(self, units: float) -> float:
        """Return seconds until this number of units has passed; infinity for never."""
        if self.rate == 0:
            return inf
        if not self.windows:
            filled = min(self.stored + self.rate * self.paused, max(self.stored, self.burst))
            return self.paused + max(0.0, units - filled) / self.rate
        left = units - self.stored
        for start, added in ((0.0, 0.0), *self.windows):
            left -= added
            if left <= 0:
                return max(start, self.paused)
        return self.windows[-1][0] + left / self.rate


@dataclass(slots=True, eq=False)
class Reservoir:
    """A capacity in the course of time."""

    capacity: Capacity  #: at the begin
    stored: float = field(init=False)
    next_window: int = field(init=False, default=0)
    _epsilon: float = field(init=False)

    def __post_init__(self) -> None:
        self.stored = self.capacity.stored
        self._epsilon = EPSILON * max(1.0, self.capacity.burst)

    @property
    def rate(self) -> float:
        """The inflow at this time, in units per second."""
        return self.capacity.rate if self.next_window == len(self.capacity.windows) else 0.0

    def max_outflow(self, now: float) -> float:
        """Return units per second that can pass. Stored units pass in a moment."""
        if self.capacity.paused > now or self.stored < 0:
            return 0.0
        return self.rate + self.stored / MOMENT_SECONDS

    def next_change(self, now: float) -> float:
        """Return when a pause ends or a window begins; infinity for never."""
        capacity = self.capacity
        change = capacity.paused if capacity.paused > now else inf
        if self.next_window < len(capacity.windows):
            change = min(change, capacity.windows[self.next_window][0])
        return change

    def seconds_to_zero(self, outflow: float) -> float:
        """Return seconds until nothing is stored or owed; infinity for never."""
        net = self._net_inflow(outflow)
        return -self.stored / net if self.stored * net < 0 else inf

    def advance(self, now: float, seconds: float, outflow: float) -> None:
        """Let time pass."""
        end = (now + seconds) * (1 + EPSILON)
        self._add(self._net_inflow(outflow) * seconds)
        windows = self.capacity.windows
        while self.next_window < len(windows) and windows[self.next_window][0] <= end:
            self._add(windows[self.next_window][1])
            self.next_window += 1

    def _net_inflow(self, outflow: float) -> float:
        """Return units per second that are stored, with this outflow."""
        net = self.rate - outflow
        return 0.0 if abs(net) <= EPSILON * outflow else net

    def _add(self, amount: float) -> None:
        stored = min(self.stored + amount, max(self.capacity.burst, self.stored))
        self.stored = 0.0 if abs(stored) < self._epsilon else stored
