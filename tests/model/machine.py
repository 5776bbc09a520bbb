"""What may happen, in any order."""

from __future__ import annotations

import math
import sys
from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from celery_throttle.limits.duration import ENDLESS_US
from celery_throttle.limits.key import ItemLike, LimitRef, parse_item
from celery_throttle.limits.requirement import parse_limits
from tests.model import callers, laws, tables
from tests.model.bounds import Histories
from tests.model.claimants import Worker
from tests.model.drain import drain
from tests.model.gate import bring
from tests.model.tasks import Kind, Message, Task
from tests.model.watched import Delivery, Server, Watched
from tests.model.world import World
from tests.protocol import SECOND, Protocol

#: How many rules run from one look at everything the server keeps to the next.
STRIDE = 4

_some = st.integers(0, 7)


class Model(RuleBasedStateMachine):
    """Two workers, and callers outside tasks.

    Args:
        seen: counts what has happened in all runs, to see that everything does.
    """

    def __init__(self, protocol: Protocol, watched: Watched, seen: Counter[str]) -> None:
        super().__init__()
        self.seen = seen
        protocol.client.flushdb()
        protocol.now, protocol.ask, protocol.tokens = tables.START, SECOND, Counter()
        protocol.limiter.register()
        limits = {
            LimitRef(name, None): parse_limits(own, name) for name, own in tables.LIMITS.items()
        }
        world = World(protocol.keys, Histories(limits), protocol.now)
        self.server = Server(protocol, watched, world)
        self.world = world
        self.count = self.steps = 0
        self.workers = [self._worker(), self._worker()]
        self.taken: list[callers.Taken] = []

    def _worker(self) -> Worker:
        self.count += 1
        return Worker(f"w{self.count}", self.server)

    # Tasks and workers.

    @rule(kind=st.sampled_from(tables.KINDS), how=st.sampled_from(tables.GATES), which=_some)
    def arrive(self, kind: Kind, how: tables.Gate, which: int) -> None:
        """New tasks."""
        expires = kind.expires and self.world.clock + kind.expires
        for _ in range(how.many):
            task = Task(str(len(self.world.tasks)), kind, expires)
            self.world.tasks.append(task)
            self._bring(Delivery(Message(task, 0)), how, which)

    arrive_2 = arrive  # the same by other names comes up more often

    @precondition(lambda self: self.server.broker or any(one.deliveries for one in self.workers))
    @rule(how=st.sampled_from(tables.GATES), which=_some)
    def deliver(self, how: tables.Gate, which: int) -> None:
        """What was put off, or is delivered once more."""
        worker = self.workers[which % 2]
        waiting = worker.deliveries or self.server.broker
        if waiting:
            self._bring(waiting.pop(which % len(waiting)), how, which)

    def _bring(self, delivery: Delivery, how: tables.Gate, which: int) -> None:
        worker = self.workers[which % 2]
        self.seen[bring(worker, delivery, mode=how.mode, lost=how.lost)] += 1

    @rule(how=st.sampled_from(tables.CLAIMS), which=_some)
    def claim(self, how: tables.Claim, which: int) -> None:
        worker = self.workers[which % 2]
        waits = any(self.world.in_lines())
        before = laws.Kept(self.server) if waits and how.room > 2 else None
        lines = {
            one.line.encode()
            for one in self.world.in_lines()
            if len(one.message.task.kind.refs) == 1
        }
        claimed = worker.claim(how.room, ahead=how.ahead, lost=how.lost)
        self.seen["lost claim" if how.lost else "claimed"] += len(claimed)
        if before:
            served = Counter(one.line.encode() for one in claimed)
            laws.check_turns(before, laws.Kept(self.server), served, lines)
        if how.start:
            worker.start_booked()

    @rule(how=st.sampled_from(tables.CLAIMS), which=_some)
    def claim_in_time(self, how: tables.Claim, which: int) -> None:
        """When the one that asked last was told to ask again."""
        self.server.advance(min(self.server.protocol.ask, SECOND))
        self.claim(how, which)

    claim_in_time_2 = claim_in_time_3 = claim_in_time

    @rule(which=_some)
    def start(self, which: int) -> None:
        self.workers[which % 2].start_booked()

    @precondition(lambda self: any(one.running for one in self.workers))
    @rule(which=_some, retry=st.sampled_from([False, False, False, True]))
    def finish(self, which: int, *, retry: bool) -> None:
        running = [(worker, run) for worker in self.workers for run in worker.running]
        worker, run = running[which % len(running)]
        self.seen["retried" if retry else "finished"] += 1
        worker.finish(run, retry=retry)

    finish_2 = finish

    @precondition(lambda self: any(one.booked for one in self.workers))
    @rule(which=_some, lost=st.sampled_from([False, False, True]))
    def give_back(self, which: int, *, lost: bool) -> None:
        worker = next(one for one in self.workers if one.booked)
        some = worker.booked[which % 2 :]
        self.seen["given back"] += len(some)
        worker.give_back(some, lost=lost)

    @precondition(lambda self: any(one.booked for one in self.workers))
    @rule()
    def set_aside(self) -> None:
        worker = next(one for one in self.workers if one.booked)
        self.seen["set aside"] += 1
        worker.set_aside(worker.booked[-1])

    @precondition(lambda self: self.world.aside)
    @rule()
    def recall(self) -> None:
        """A worker has the code."""
        self.server.recall()

    @precondition(lambda self: self.world.leases)
    @rule(which=_some, most=st.integers(1, 3))
    def reclaim(self, which: int, most: int) -> None:
        """Somebody has heard that a worker is silent, maybe long ago."""
        leases = sorted(self.world.leases.items(), key=lambda one: one[1])
        name, till = leases[min(which // 4, len(leases) - 1)]
        self.seen["reclaimed"] += till <= self.world.passed
        self.workers[which % 2].reclaim(name, most)

    @precondition(lambda self: self.world.claims)
    @rule(which=_some)
    def renew(self, which: int) -> None:
        self.workers[which % 2].renew()

    @precondition(lambda self: any(one.holds_anything for one in self.workers))
    @rule(which=_some)
    def crash(self, which: int) -> None:
        self.seen["crashed"] += 1
        self.workers[which % 2].crash()
        self.workers[which % 2] = self._worker()

    @precondition(lambda self: self.world.tasks)
    @rule(which=_some)
    def revoke(self, which: int) -> None:
        """One that waits, if there is any, else one that may be anywhere."""
        waiting = [one.message.task for one in self.world.in_lines()] or self.world.tasks
        self.seen["revoked"] += 1
        self.workers[which % 2].withdraw(waiting[-1 - which % len(waiting)])

    @precondition(lambda self: any(self.world.in_lines()))
    @rule(which=_some, most=st.integers(1, 3))
    def send_to_broker(self, which: int, most: int) -> None:
        copies = [*self.server.broker]
        for worker in self.workers:
            copies += worker.deliveries + worker.parked
        drained = self.workers[which % 2].send_to_broker(most)
        self.seen["drained"] += len(drained)
        for message in drained:
            # Copies that a crash has left, or may leave, are not known any more as parked before.
            message.task.allowed += sum(one.message == message for one in copies)

    # Callers outside tasks.

    @rule(ask=st.sampled_from(tables.ASKS))
    def acquire(self, ask: tables.Ask) -> None:
        self.count += 1
        taken = callers.take(self.server, ask, f"caller {self.count}")
        self.seen[f"{ask.mode} {'allowed' if taken else 'refused'}"] += 1
        if taken and ask.mode in ("reserve", "slot"):
            self.taken.append(taken)

    @precondition(lambda self: self.taken)
    @rule(which=_some, worth=st.sampled_from([0, 0.25, 0.5, 1, 3]))
    def settle(self, which: int, worth: float) -> None:
        self.seen["settled"] += 1
        callers.settle(self.server, self.taken.pop(which % len(self.taken)), worth)

    # Limits.

    @rule(reference=st.sampled_from([*tables.CHANGES]), which=st.integers(0, 63))
    def define(self, reference: ItemLike, which: int) -> None:
        options = tables.CHANGES[reference]
        written = options[which % len(options)]
        self.seen["defined" if written else "undefined"] += 1
        callers.define(self.server, parse_item(reference), written)

    @rule(
        reference=st.sampled_from(tables.NAMED),
        change=st.sampled_from([0.05, 1, 3, math.inf, "reset", "resume", "resume"]),
    )
    def pause_or_lift(self, reference: ItemLike, change: float | str) -> None:
        limit, ref = self.server.protocol.limiter[reference], parse_item(reference)
        if change == "reset":
            self.server.advance(1)  # no two scripts run at the same time
            limit.reset()
            self.world.reset(ref)
        elif change == "resume":
            if limit.resume():
                self.seen["resumed"] += 1
            self.world.resume(ref)
        else:
            seconds = float(change)
            limit.pause(None if seconds == math.inf else seconds)
            self.world.pause(ref, ENDLESS_US if seconds == math.inf else round(seconds * SECOND))

    # Time.

    @rule(us=st.sampled_from(tables.TIMES))
    def wait(self, us: int) -> None:
        """Time passes; or the clock steps back, if it is less than 0."""
        self.seen["stepped back"] += us < 0
        self.server.advance(us)

    @invariant()
    def look(self) -> None:
        """All is where it should be."""
        self.seen["steps"] += 1
        self.steps += 1
        if self.steps % STRIDE == 0:
            self._check(idle=self.steps % STRIDE**2 == 0)

    def _check(self, *, idle: bool) -> None:
        kept = laws.check(self.server, self.workers, tables.REFS)
        if idle:
            laws.check_due(self.server, kept, tables.REFS)

    def teardown(self) -> None:
        # After a failure there is nothing to be learned from this.
        if sys.exc_info()[0] is None:
            self.seen["runs"] += 1
            self._check(idle=True)
            drain(self.server, self.workers)
