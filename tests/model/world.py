"""What should be where: the truth to which the server is held.

A task is at the broker, in a line, claimed, or done. What is here is changed by what the scripts
reply, whether the worker that called came to know of it or not, and compared with what the server
keeps by ``laws.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from celery_throttle.limits.cost import to_millionths
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.requirement import find_strictest, has_slots
from celery_throttle.store.keys import Keys
from tests.model.bounds import Admission, Histories
from tests.model.tasks import Kind, Message, Task, Waiting
from tests.protocol import SECOND, Claimed

#: How long a worker, and who holds a slot, may be silent.
LEASE = 5 * SECOND
#: How long the identity of a parked message is remembered at least.
MEMORY = 60 * SECOND  # as in Protocol.park
QUEUES = ("p", "q")


@dataclass
class World:
    """The truth.

    Attributes:
        passed: microseconds that really passed; the clock may have stepped back.
        lines: by queue and task id.
        claims: by worker and token; ``leases`` of the workers that have any.
        aside: claims of tasks for which their worker had no code, by task id.
        taken: what was taken with each claim, by worker and token.
        holders: who holds slots of a name and key, and until when.
        parks: identities that are remembered, and since when.
        pauses: until when.
        back: how far the clock has stepped back in all.

    Deadlines are times that really passed. What the server has may end later, by ``back`` at most.
    """

    keys: Keys
    histories: Histories
    clock: int
    passed: int = 0
    back: int = 0
    tasks: list[Task] = field(default_factory=list)
    lines: dict[str, dict[str, Waiting]] = field(
        default_factory=lambda: {queue: {} for queue in QUEUES}
    )
    claims: dict[str, dict[int, Waiting]] = field(default_factory=dict)
    leases: dict[str, int] = field(default_factory=dict)
    aside: dict[str, Waiting] = field(default_factory=dict)
    taken: dict[tuple[str, int], list[Admission]] = field(default_factory=dict)
    holders: dict[LimitRef, dict[str, int]] = field(default_factory=dict)
    parks: dict[str, int] = field(default_factory=dict)
    pauses: dict[LimitRef, int] = field(default_factory=dict)
    joined: int = 0

    def advance(self, us: int) -> None:
        """Time passes; or the clock steps back, in no time."""
        self.clock += us
        if us > 0:
            self.passed += us
        elif us < 0:
            self.back -= us
            self.histories.step_back()

    # Bounds of keys and of tasks that wait.

    def max_keys_of(self, ref: LimitRef) -> int:
        """How many keys of its name may be in use; 0 for any number, or without a key."""
        limits = self.histories.in_force(ref) if ref.key else ()
        return find_strictest(limit.max_keys for limit in limits) or 0

    def check_room(self, refs: Sequence[LimitRef]) -> None:
        """Whose tasks wait are in use; of a key of which nothing ever was, nothing may be taken."""
        lined = {ref for one in self.in_lines() for ref in one.message.task.kind.refs}
        for ref in refs:
            others = sum(one.name == ref.name for one in lined - {ref})
            new = ref not in lined and not self.histories.is_used(ref)
            full = new and 0 < self.max_keys_of(ref) <= others
            assert not full, f"{ref} was used though {lined} wait"

    def check_full(self, refs: Sequence[LimitRef], *, full: bool) -> None:
        """What joins a line, or does not since it is full."""
        for ref in refs:
            most = find_strictest(limit.max_waiting for limit in self.histories.in_force(ref))
            waiting = [one.message.task.kind.refs for one in self.in_lines()]
            # A line of several waits at any of them.
            assert full or most is None or waiting.count([ref]) < most, f"too many wait at {ref}"
            if full and most and sum(ref in one for one in waiting) >= most:
                return
        limits = [limit for ref in refs for limit in self.histories.in_force(ref)]
        assert not full or any(limit.algorithm == "leaky-queue" for limit in limits)

    # Quota.

    def slots_of(self, ref: LimitRef) -> int:
        """How many slots a name and key has; 0 for none."""
        return sum(one.burst for one in self.histories.in_force(ref) if has_slots(one))

    def places_of(self, refs: Sequence[LimitRef]) -> list[bytes]:
        """Entries and waits of the slots that are taken with some limits."""
        keys = self.keys
        names = ((keys.entries(ref), keys.waiting_lists(ref)) for ref in refs if self.slots_of(ref))
        return [name.encode() for pair in names for name in pair]

    def admit(
        self, refs: Sequence[LimitRef], cost: float, wait: int, holder: str = "", delay: int = 0
    ) -> list[Admission]:
        """Something starts some microseconds from now; its slots are held for as much longer."""
        at, admitted = self.passed + wait, []
        for ref in refs:
            for paused in (LimitRef(ref.name, None), ref):
                assert self.pauses.get(paused, 0) <= at, f"{ref} is paused"
            admitted += self.histories.admit(ref, to_millionths(cost), self.passed + wait)
            slots = self.slots_of(ref)
            if slots:
                held = self.held(ref)
                live = {one for one, till in held.items() if till > self.passed}
                assert len(live) < slots, f"{ref} has no slot left for {holder}: {live}"
                # The server may take those for live that ended a moment ago.
                known = {one: till for one, till in held.items() if till + self.back > self.passed}
                self.holders[ref] = {**known, holder: at + delay + LEASE}
        return admitted

    def held(self, ref: LimitRef) -> dict[str, int]:
        """Who holds slots."""
        return self.holders.setdefault(ref, {})

    def release(self, refs: Sequence[LimitRef], holder: str) -> None:
        """Slots are given back."""
        for ref in refs:
            self.held(ref).pop(holder, None)

    def renew(self, held: Sequence[tuple[LimitRef, str]]) -> None:
        """Slots are held for longer, also if the lease has run out and nobody took one since."""
        for ref, holder in held:
            if holder in self.held(ref):
                self.held(ref)[holder] = self.passed + LEASE

    def resume(self, ref: LimitRef) -> None:
        self.pauses.pop(ref, None)

    def pause(self, ref: LimitRef, us: int) -> None:
        self.pauses[ref] = max(self.pauses.get(ref, 0), self.passed + us)

    def reset(self, ref: LimitRef) -> None:
        self.resume(ref)
        self.histories.reset(ref)

    def never_fits(self, kind: Kind) -> bool:
        """Whether its cost is above what any of its limits can hold."""
        limits = [one for ref in kind.refs for one in self.histories.in_force(ref)]
        return any(kind.cost > one.burst for one in limits if not has_slots(one))

    def define(self, ref: LimitRef, limits: tuple[Limit, ...] | None) -> None:
        self.histories.define(ref, limits, self.passed)

    # Lines.

    def message_of(self, packed: bytes) -> Message:
        number, attempt = map(int, packed.split())
        return Message(self.tasks[number], attempt)

    def join(self, message: Message) -> bool:
        """A message joins its line; False if one of its task is there."""
        kind = message.task.kind
        line = self.lines[kind.queue]
        if message.task.id in line:
            return False
        name = self.keys.line(kind.queue, kind.refs)
        self.joined += 1
        rank = kind.rank
        others = [one for one in line.values() if one.line == name]
        last = max((one.units for one in others if one.message.task.kind.rank == rank), default=0)
        units = max(self.clock // 64, last + 1)  # the clock may have stepped back
        line[message.task.id] = Waiting(message, name, self.joined, units)
        self.parks[message.identity] = self.clock
        return True

    def hand_out(self, worker: str, row: Claimed) -> Waiting:
        """A message is claimed: the one that is there, and the first of its line."""
        message = self.message_of(row.message)
        assert row.id == message.task.id
        line = self.lines[message.task.kind.queue]
        waiting = line.pop(row.id, None)
        assert waiting, f"task {row.id} was not in its line"
        assert waiting.message == message, f"task {row.id} has another message"
        claims = self.claims.setdefault(worker, {})
        assert row.token not in claims
        claims[row.token] = waiting
        return waiting

    def check_first(self, waiting: Waiting) -> None:
        """First come, first served, by priority."""
        for other in self.lines[waiting.message.task.kind.queue].values():
            overtaken = other.line == waiting.line and other.is_before(waiting)
            assert not overtaken, f"{other} was overtaken by {waiting}"

    def settle(self, worker: str, token: int) -> Waiting | None:
        """A claim is no more."""
        claims = self.claims.get(worker, {})
        waiting = claims.pop(token, None)
        if waiting and not claims:
            del self.claims[worker]
        return waiting

    def unclaim(self, worker: str, token: int) -> Waiting | None:
        """A claim is no more, and its slots are given back."""
        waiting = self.settle(worker, token)
        if waiting:
            task = waiting.message.task
            self.release(task.kind.refs, f"{worker} {token} {task.id}")
        return waiting

    def refund(self, worker: str, token: int) -> None:
        """The task of a claim was not started: it used no units, given back or not."""
        self.histories.refund(self.taken.pop((worker, token), []), 0)

    def rejoin(self, waiting: Waiting) -> None:
        """A message goes back to its line, unless a newer one of the task is there."""
        task = waiting.message.task
        if task.id not in self.lines[task.kind.queue]:
            waiting.returned = True
            self.lines[task.kind.queue][task.id] = waiting

    def lease(self, worker: str) -> None:
        """A worker has been heard of."""
        if worker in self.claims:
            self.leases[worker] = self.passed + LEASE
        self.end_lease(worker)

    def end_lease(self, worker: str) -> None:
        """A worker has let go of claims."""
        if worker not in self.claims:
            self.leases.pop(worker, None)

    def in_lines(self) -> Iterator[Waiting]:
        for line in self.lines.values():
            yield from line.values()
