"""Heard: what an answer says of the limits that its request passed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Seconds for which a refusal stops a limit if neither the answer nor the limit says for how long.
UNTOLD = 1.0


@dataclass(frozen=True, slots=True)
class Heard:
    """What there is to learn of one answer. It can stop or tighten limits, never loosen them.

    Attributes:
        refused: Whether it was a refusal: the API did not do what was asked.
        stop: Seconds for which the API asked for no more requests; None if it did not say. After a
            refusal that is ``UNTOLD``, or what an adaptive limit takes it to be.
        left: Whole units that the API says are left of its own quota; None if it did not say. Of
            several limits a mapping, by the name of the limit.
        took: Seconds from the request to the answer.
    """

    refused: bool = False
    stop: float | None = None
    left: int | Mapping[str, int] | None = None
    took: float = 0.0

    def left_of(self, name: str) -> int | None:
        """What is left of the quota that a limit stands for."""
        return self.left.get(name) if isinstance(self.left, Mapping) else self.left
