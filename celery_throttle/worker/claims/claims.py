"""What this worker holds under its lease, and how it lets go of it.

A claim is settled when its task is acknowledged, or given back to the head of its line when it was
not started. Both are told to the server late or twice without harm: an unsettled claim is lost to
nobody while the lease lasts, and goes back to its line when it runs out.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from celery.utils.log import get_logger

from celery_throttle.errors import StoreError
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.store.client import Store
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import Argument, Call, script
from celery_throttle.worker.admission.quota_cache import Demand
from celery_throttle.worker.claims.recent_reports import Told
from celery_throttle.worker.claims.slots import Place, places_of
from celery_throttle.worker.health.error_log import Complaints

logger = get_logger(__name__)

#: Claims that one call gives back at most: the server does nothing else meanwhile.
FEW = 100


class Claim:
    """A task that this worker holds.

    Attributes:
        token: its name among the worker's claims.
        admitted: whether its quota was taken with it. If not (it has expired, was revoked or can
            never pass), the gate decides as for any message.
        waited: seconds it spent in its line.
        slots: those that were taken with it.
        delivered: whether Celery was handed its message.
        started: whether the pool has it.
        returned: whether it went back to its line; what still refers to it must not run it.
    """

    __slots__ = (
        *("_claims", "admitted", "delivered", "returned", "slots", "started", "token", "waited"),
    )

    def __init__(
        self, claims: Claims, token: int, *, admitted: bool, waited: float, slots: Sequence[Place]
    ) -> None:
        self._claims = claims
        self.token = token
        self.admitted = admitted
        self.waited = waited
        self.slots = slots
        self.delivered = False
        self.started = False
        self.returned = False

    @property
    def name(self) -> str:
        """Tells it from all other claims of all workers."""
        return f"{self._claims.worker} {self.token}"

    def start(self) -> bool:
        """The pool is to have it; False if it went back to its line."""
        return self._claims.start(self)

    def settle(self) -> None:
        """The task is done with."""
        self._claims.settle(self)

    def give_back(self) -> None:
        """The task goes back to the head of its line."""
        self._claims.give_back([self])


class Taken(NamedTuple):
    """A task that came out of its line: it starts in some seconds."""

    claim: Claim
    starts: float
    packed: bytes


class Claims:
    """All claims of one worker. Called from any thread.

    Args:
        store, keys: the server and its names.
        worker: this worker's name.
        settled: called when a claim was settled, from whatever thread acknowledged its task.
    """

    def __init__(self, store: Store, keys: Keys, worker: str, settled: Callable[[], None]) -> None:
        self._store = store
        self._keys = keys
        self.worker = worker
        #: The workers and their leases, and the claims of this one.
        self.keys = (keys.workers, keys.claims(worker))
        self._on_settled = settled
        self._held: dict[int, Claim] = {}
        #: Tokens; below zero of those that were not started, whose slots nobody else gives back.
        self._settled: deque[int] = deque()
        self._told: Told[int] = Told()
        #: Tokens; below zero of those that were not delivered.
        self._unsure: list[int] = []
        self._complaints = Complaints(
            "The server of the limits does not let tasks go back to their lines; they wait, and "
            "this worker tries again."
        )
        self._next = 1
        self._starts = Demand()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def held(self) -> list[Claim]:
        """All of them."""
        return list(self._held.values())

    def booked(self) -> list[Claim]:
        """Claims that the pool does not have yet."""
        return [claim for claim in self.held() if not claim.started]

    def reserve(self, count: int) -> int:
        """The first of so many new tokens."""
        with self._lock:
            first, self._next = self._next, self._next + count
        return first

    def receive(self, row: Sequence[Any]) -> Taken:
        """A task that the server has just given, as ``claim.lua`` and ``withdraw.lua`` reply it."""
        token, kind, starts, waited, packed, _, *slots = row
        claim = Claim(
            self,
            token,
            admitted=kind == 1,
            waited=waited / MICROSECONDS,
            slots=places_of(*slots) if slots else (),
        )
        self._held[token] = claim
        return Taken(claim, starts / MICROSECONDS, packed)

    def start(self, claim: Claim) -> bool:
        """See :meth:`Claim.start`."""
        with self._lock:
            claim.started = not claim.returned
        self._starts.count(None, time.monotonic())
        return claim.started

    def recent(self) -> int:
        """How many were started in 20 ms of late."""
        return self._starts.recent(None, time.monotonic())

    def started(self) -> list[Claim]:
        """Claims that the pool was given."""
        return [claim for claim in self.held() if claim.started]

    def settle(self, claim: Claim) -> None:
        """The task is done with."""
        if self._held.pop(claim.token, None) is not None:
            self._settled.append(claim.token if claim.started else -claim.token)
            self._on_settled()

    def unreported(self) -> bool:
        """Whether the server has yet to hear of settled claims."""
        return bool(self._settled)

    def take_settled(self) -> list[int]:
        """Tokens to tell the server of as settled; :meth:`settle_again` if that fails."""
        settled = [self._settled.popleft() for _ in range(len(self._settled))]
        self._told.add(settled)
        return settled

    def tell_again(self) -> None:
        """The server may have forgotten what it was told last."""
        self._settled.extend(self._told.recent())

    def settle_again(self, tokens: Iterable[int]) -> None:
        """The server may not have heard of them."""
        self._settled.extend(tokens)

    def give_back(self, claims: Iterable[Claim], *, unless_started: bool = False) -> None:
        """Tasks go back to the head of their lines; when the server can be reached, if not now."""
        with self._lock:
            for claim in claims:
                stays = claim.started and unless_started
                if not stays and self._held.pop(claim.token, None) is not None:
                    claim.returned = True
                    self._unsure.append(claim.token if claim.delivered else -claim.token)
        try:
            self.give_back_unsure()
        except StoreError as error:
            self._complaints.log(error)

    def set_aside(self, claim: Claim, label: str) -> None:
        """A task is left to a worker that has the code for it; see ``quarantine.lua``."""
        with self._lock:
            if self._held.pop(claim.token, None) is None:
                return
            claim.returned = True
        names = [*self.keys, self._keys.quarantine]
        try:
            self._store.run(
                Call(script("quarantine"), names, ["", self.worker, claim.token, label])
            )
        except StoreError:  # then it goes back to its line
            self.doubt([claim.token])

    def doubt(self, tokens: Iterable[int]) -> None:
        """A call failed: nobody knows whether it made claims of these tokens."""
        with self._lock:
            self._unsure.extend(-token for token in tokens)

    def give_back_unsure(self) -> None:
        """Give back what should not be held.

        Raises:
            StoreError: it has to be done once more.
        """
        while self._unsure:
            with self._lock:
                tokens, self._unsure = self._unsure[:FEW], self._unsure[FEW:]
            try:
                self._back(self.worker, "own", len(tokens), tokens)
            except StoreError:
                with self._lock:
                    self._unsure.extend(tokens)
                raise

    def reclaim(self, worker: str) -> None:
        """The lease of another worker has run out: all its claims go back to their lines."""
        logger.warning("Worker %s is gone: its tasks go back to their lines", worker)
        try:
            while self._back(worker, "dead", FEW, []):
                pass
        except StoreError as error:
            self._complaints.log(error)

    def _back(self, worker: str, which: str, most: int, tokens: Sequence[int]) -> int:
        names = [self._keys.workers, self._keys.claims(worker)]
        args: list[Argument] = ["", worker, which, most, *tokens]
        left: int = self._store.run(Call(script("requeue"), names, args))
        return left
