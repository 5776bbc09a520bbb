"""A claim: this worker's hold on one task that came out of a line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from celery_throttle.worker.slots import SlotKeys
from celery_throttle.worker.wait import Wait


class ClaimHolder(Protocol):
    """All claims of a worker: :class:`celery_throttle.worker.claims.claims.Claims`."""

    worker: str

    def start(self, claim: Claim) -> bool:
        """Record that the pool gets the task; False if it must not start in this worker."""

    def settle(self, claim: Claim) -> None:
        """Record that the task is done."""

    def requeue(self, claims: Iterable[Claim]) -> None:
        """Put tasks back at the heads of their lines."""


@dataclass(eq=False, slots=True)
class Claim:
    """A task that this worker holds."""

    claims: ClaimHolder
    token: int  #: number of the claim among the worker's claims
    #: Whether the quota was taken with the task. If not (the task has expired, was revoked, or can
    #: never pass), the gate decides as about any message.
    admitted: bool
    wait: Wait | None  #: in its line; None if the quota was not taken
    slots: Sequence[SlotKeys]  #: those that were taken with the task
    #: Time of day after which the task must not start: other workers may have requeued it.
    start_by: float
    delivered: bool = False  #: whether Celery got the message
    started: bool = False  #: whether the pool has the task
    #: Whether the task left this worker unstarted: requeued, or into quarantine. Then nothing in
    #: this worker may run it.
    returned: bool = False

    @property
    def name(self) -> str:
        """A name that no other claim of any worker has."""
        return f"{self.claims.worker} {self.token}"

    def start(self) -> bool:
        """Record that the pool gets the task; False if it must not start in this worker."""
        return self.claims.start(self)

    def settle(self) -> None:
        """Record that the task is done."""
        self.claims.settle(self)

    def requeue(self) -> None:
        """Put the task back at the head of its line."""
        self.claims.requeue([self])
