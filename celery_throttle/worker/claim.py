"""A claim: this worker's hold on one task that came out of a line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from celery_throttle.limits.key import LimitRef
from celery_throttle.worker.slots import SlotKeys


class Wait(NamedTuple):
    """A wait that is over."""

    ref: LimitRef  #: the limit that the task waited for last
    position: int  #: in the line when the task joined it, from 1; 0 without a line
    seconds: float


class ClaimStatus(Enum):
    """How far the task of a claim has come in this worker."""

    BOOKED = "booked"  # it waits for its start
    DELIVERED = "delivered"  # Celery has the message
    STARTED = "started"  # the pool has the task
    #: The task left this worker: requeued, or into quarantine. Nothing in this worker may run it.
    RETURNED = "returned"


class ClaimHolder(Protocol):
    """All claims of a worker: :class:`celery_throttle.worker.claims.claims.Claims`."""

    worker: str

    def start(self, claim: Claim) -> bool:
        """Record that the pool gets the task; False if it must not start in this worker."""

    def settle(self, claim: Claim) -> None:
        """Record that the message is acknowledged, which ends the claim."""

    def requeue(self, claims: Iterable[Claim]) -> None:
        """Put tasks back at the heads of their lines."""


@dataclass(eq=False, slots=True)
class Claim:
    """A task that this worker holds."""

    claims: ClaimHolder
    token: int  #: number of the claim among the worker's claims
    #: Whether the units were taken with the task. If not (the task has expired, was revoked, or can
    #: never pass), the gate decides, as for any message.
    has_units: bool
    wait: Wait | None  #: in its line; None if the units were not taken
    slots: Sequence[SlotKeys]  #: those that were taken with the task
    #: Time of day after which the task must not start: other workers may have requeued it.
    start_by: float
    status: ClaimStatus = ClaimStatus.BOOKED

    @property
    def name(self) -> str:
        """A name that no other claim of any worker has."""
        return f"{self.claims.worker} {self.token}"

    @property
    def is_started(self) -> bool:
        """Whether the pool has the task, or had it."""
        return self.status is ClaimStatus.STARTED

    @property
    def is_returned(self) -> bool:
        """Whether the task left this worker; see :class:`ClaimStatus`."""
        return self.status is ClaimStatus.RETURNED

    def start(self) -> bool:
        """Record that the pool gets the task; False if it must not start in this worker."""
        return self.claims.start(self)

    def settle(self) -> None:
        """Record that the message is acknowledged, which ends the claim."""
        self.claims.settle(self)

    def requeue(self) -> None:
        """Put the task back at the head of its line."""
        self.claims.requeue([self])
