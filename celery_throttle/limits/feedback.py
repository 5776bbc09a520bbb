"""Feedback: what the answer of an API says about the limits that its request passed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Seconds for which a refusal stops a limit if neither the answer nor the limit gives a time.
DEFAULT_STOP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Heard:
    """Feedback from one answer. It can stop or tighten limits, never loosen them.

    Attributes:
        refused: Whether the API refused the request.
        stop: Seconds for which the API asked for no more requests; None if it did not say. After a
            refusal None means ``DEFAULT_STOP_SECONDS``, or the stop that an adaptive limit chooses.
        left: Whole units that the API says are left of its own quota; None if it did not say. For
            several limits a mapping of limit name to units.
        took: Seconds from the request to the answer.
    """

    refused: bool = False
    stop: float | None = None
    left: int | Mapping[str, int] | None = None
    took: float = 0.0

    def left_of(self, name: str) -> int | None:
        """Return the units left of the API's quota for the limit ``name``; None if unknown."""
        return self.left.get(name) if isinstance(self.left, Mapping) else self.left
