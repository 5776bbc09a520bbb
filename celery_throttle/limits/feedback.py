"""Feedback: what the answer of an API says about the limits that its request passed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Seconds for which a refusal stops a limit if neither the answer nor the limit gives a time.
DEFAULT_STOP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Feedback:
    """Feedback from one answer of an API. It can stop or tighten limits, never loosen them.

    Attributes:
        refused: Whether the API refused the request. Default False.
        stop: Seconds for which the API asked for no more requests. None (the default): the API gave
            no time. After a refusal, None stops the limit for one second, or for the time that an
            adaptive limit chooses.
        left: Whole units that are left of the quota, according to the API. For several limits, a
            mapping of limit names to units. None (the default): the API did not report them.
        took: Seconds from the request to the answer; default 0.0. Only adaptive limits use it.

    Example:
        >>> limiter = Limiter("memory://", {"api": "10/s"})
        >>> limiter["api"].learn(Feedback(refused=True, stop=3.0))
        3.0
    """

    refused: bool = False
    stop: float | None = None
    left: int | Mapping[str, int] | None = None
    took: float = 0.0

    def left_of(self, name: str) -> int | None:
        """Return the units that are left of the API's quota for a limit; None if not reported.

        Args:
            name: The name of the limit.
        """
        return self.left.get(name) if isinstance(self.left, Mapping) else self.left
