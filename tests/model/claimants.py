"""Workers without Celery: what they know, and how they claim. The gate is in ``gate.py``.

What a script replies changes the truth (``world.py``); what a worker knows changes only if the
reply reaches it. A reply that is lost is a call that was carried out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from celery_throttle.limits.key import LimitRef
from celery_throttle.operations.lines import Claimant, WithdrawPlans
from tests.model.tasks import Message, Task, Waiting
from tests.model.watched import Delivery, Run, Server
from tests.model.world import LEASE, QUEUES, World
from tests.protocol import SECOND, Claimed

#: How far ahead a start may be booked.
AHEAD = 20_000


@dataclass(eq=False)
class Worker:
    """One worker.

    Attributes:
        deliveries: put off, to be brought to the gate once more.
        parked: parked, and the acknowledgement is on its way to the broker; ``acked``: identities
            of which that is done, to be told to the server.
        booked: claims that were not started; ``running``.
        settled, released: to be told to the server, as ``claim.lua`` takes them.
        unsure: tokens to be given back.
    """

    name: str
    server: Server
    deliveries: list[Delivery] = field(default_factory=list)
    parked: list[Delivery] = field(default_factory=list)
    acked: list[str] = field(default_factory=list)
    booked: list[Run] = field(default_factory=list)
    running: list[Run] = field(default_factory=list)
    settled: list[int] = field(default_factory=list)
    released: list[tuple[LimitRef, str]] = field(default_factory=list)
    unsure: list[int] = field(default_factory=list)

    @property
    def world(self) -> World:
        return self.server.world

    @property
    def holds_anything(self) -> bool:
        return bool(self.deliveries or self.parked or self.booked or self.running)

    def unacknowledged(self) -> list[Delivery]:
        """Of which the broker has a copy."""
        held = [one for one in self.deliveries + self.parked if not one.token]
        late = [run for run in self.running if not run.token and run.message.task.kind.late]
        return held + [Delivery(run.message) for run in late]

    def crash(self) -> None:
        """It never speaks again. The broker delivers once more what was not acknowledged."""
        for delivery in self.unacknowledged():
            self.server.broker.append(delivery._replace(redelivered=True))
        for run in self.running:
            run.message.task.allowed += 1

    # Claims.

    def claim(self, room: int, *, ahead: int = AHEAD, lost: bool = False) -> list[Waiting]:
        """Take what is due; gives what was claimed, whether this worker knows of it or not."""
        self.give_back(())
        protocol = self.server.protocol
        rows = protocol.claim(
            self.name,
            room,
            queues=QUEUES,
            ahead=ahead,
            lease=LEASE,
            settled=self.settled,
            released=self.released,
            acknowledged=self.acked,
        )
        claimed = self._told(rows, ahead)
        if lost:
            first = protocol.tokens[self.name] - room + 1
            self.unsure += range(first, first + room)
            return claimed
        self.settled, self.released = [], []
        self.acked = [one.message.identity for one in self.parked]
        self.parked = []
        for row in rows:
            self._receive(row)
        return claimed

    def _told(self, rows: Sequence[Claimed], ahead: int) -> list[Waiting]:
        """What the call has done, in its order."""
        world = self.world
        for token in self.settled:
            waiting = world.settle(self.name, abs(token))
            if waiting and token < 0:
                world.refund(self.name, -token)
                world.release(
                    waiting.message.task.kind.refs,
                    f"{self.name} {-token} {waiting.message.task.id}",
                )
        for ref, holder in self.released:
            world.release([ref], holder)
        for identity in self.acked:
            world.parks.pop(identity, None)
        world.lease(self.name)
        silent = [name for name, till in world.leases.items() if till <= world.passed]
        dead = self.server.protocol.dead.decode()
        assert not dead or dead in silent
        assert dead or all(world.leases[name] + world.back > world.passed for name in silent)
        claimed = []
        for row in rows:
            claimed.append(world.hand_out(self.name, row))
            world.check_first(claimed[-1])
            self._check(row, claimed[-1].message.task, ahead)
        world.lease(self.name)
        return claimed

    def _check(self, row: Claimed, task: Task, ahead: int) -> None:
        expired = 0 < task.expires <= self.world.clock
        refs = task.kind.refs
        if not row.admitted:
            assert expired or self.world.never_fits(task.kind)
            assert not row.slots
            return
        assert not expired
        assert 0 <= row.starts <= ahead
        assert row.slots == self.world.places_of(refs)
        taken = self.world.admit(
            refs, task.kind.cost, row.starts, f"{self.name} {row.token} {row.id}"
        )
        self.world.taken[self.name, row.token] = taken

    def _receive(self, row: Claimed) -> None:
        message = self.world.message_of(row.message)
        task = message.task
        if row.admitted:
            start = self.world.clock + row.starts
            holder = f"{self.name} {row.token} {row.id}"
            self.booked.append(Run(message, holder, row.slots, row.token, start))
        elif 0 < task.expires <= self.world.clock:
            self._drop(task, row.token)
        else:
            self.deliveries.append(Delivery(message, token=row.token))

    def _drop(self, task: Task, token: int) -> None:
        """Expired, or revoked: it is not started, and announced."""
        task.done = True
        self.settled.append(-token)

    def withdraw(self, task: Task) -> None:
        """Take a revoked task out of its line; nobody starts it from now on."""
        task.revoked = True
        protocol = self.server.protocol
        rows = protocol.withdraw(self.name, task.id, queues=QUEUES, lease=LEASE)
        for row in rows:
            assert row.id == task.id
            self.world.hand_out(self.name, row)
            self.world.lease(self.name)
            self._drop(task, row.token)

    def send_to_broker(self, most: int) -> list[Message]:
        """Take the first tasks out of the lines of each queue, and send them to the broker."""
        protocol, drained = self.server.protocol, []
        plans = WithdrawPlans(protocol.keys, None, protocol.now)
        for queue in QUEUES:
            first = protocol.tokens[self.name] + 1
            protocol.tokens[self.name] += most
            call = plans.lines_call(
                Claimant(self.name, LEASE / SECOND),
                queue,
                list(protocol.limiter.run_plan(plans.lines(queue))),
                first_token=first,
                parked_by=2**52,  # the clock may have stepped back
                most=most,
            )
            _, _, *rows = protocol.store.run(call)
            for token, message, task_id in rows:
                row = Claimed(
                    token,
                    admitted=False,
                    starts=0,
                    waited=0,
                    message=message,
                    id=task_id.decode(),
                    slots=(),
                )
                waiting = self.world.hand_out(self.name, row)
                self.world.check_first(waiting)
                drained.append((token, waiting.message))
            self.world.lease(self.name)
        self.acked += [message.identity for _, message in drained]
        self.claim(0)
        self.server.broker += [Delivery(message) for _, message in drained]
        self.settled += [-token for token, _ in drained]
        return [message for _, message in drained]

    def give_back(self, runs: Sequence[Run], *, lost: bool = False) -> None:
        """Claims that are not started go back, and those nobody knows of."""
        self.booked = [run for run in self.booked if run not in runs]
        self.unsure += [run.token for run in runs]
        if self.unsure:
            left = self.server.protocol.back(self.name, "own", *self.unsure)
            assert left == 0
            for token in self.unsure:
                waiting = self.world.unclaim(self.name, token)
                if waiting:
                    self.world.refund(self.name, token)
                    self.world.rejoin(waiting)
            self.world.end_lease(self.name)
        if not lost:
            self.unsure = []

    def set_aside(self, run: Run) -> None:
        """It has no code for a task that it claimed."""
        self.booked.remove(run)
        protocol = self.server.protocol
        protocol.set_aside(self.name, run.token)
        waiting = self.world.unclaim(self.name, run.token)
        if waiting:
            self.world.refund(self.name, run.token)
            self.world.aside[run.message.task.id] = waiting
            self.world.end_lease(self.name)

    def renew(self) -> None:
        """Its own lease goes on, and those of the slots of its tasks."""
        self.claim(0)
        held = [one for run in self.booked + self.running for one in run.releases()]
        if held:
            limiter = self.server.protocol.limiter
            limiter.run_plan(limiter.plans.renew(held, LEASE / SECOND))
            self.world.renew([one for one in held if self._holds(*one)])

    def _holds(self, ref: LimitRef, holder: str) -> bool:
        """Whether the server knows a slot as taken: for certain if its lease has not run out."""
        protocol, held = self.server.protocol, self.world.held(ref)
        holds = protocol.client.zscore(protocol.keys.entries(ref), holder) is not None
        if self.world.back and held.get(holder, 0) <= self.world.passed:
            return holds
        assert holds == (holder in held)
        return holds

    def reclaim(self, worker: str, most: int) -> None:
        """Give back what a silent worker has claimed."""
        world, protocol = self.world, self.server.protocol
        till = protocol.client.zscore(protocol.keys.workers, worker) or 0
        silent = till <= world.clock
        assert not silent or world.leases.get(worker, 0) <= world.passed
        # In this order: of two claims of one task the first finds its place.
        held = protocol.client.hkeys(protocol.keys.claims(worker)) if silent else []
        left = protocol.back(worker, "dead", most=most)
        assert left == max(0, len(held) - most)
        if silent:
            for token in held[:most]:
                waiting = world.unclaim(worker, int(token))
                if waiting:
                    waiting.message.task.allowed += 1
                    world.rejoin(waiting)
            if not left:
                world.leases.pop(worker, None)

    # Tasks.

    def start_booked(self) -> None:
        """What was booked starts when its slot has come, if it has not expired by then."""
        for run in list(self.booked):
            if run.start <= self.world.clock:
                self.booked.remove(run)
                task = run.message.task
                if task.revoked or 0 < task.expires <= self.world.clock:
                    self._drop(task, run.token)
                else:
                    self.start(run)

    def start(self, run: Run) -> None:
        """A process takes it."""
        task = run.message.task
        task.start()
        self.running.append(run)
        if not task.kind.late:
            task.done = True
            if run.token:
                self.settled.append(run.token)

    def finish(self, run: Run, *, retry: bool = False) -> None:
        """It has ended; a retry is a new message of the same task."""
        self.running.remove(run)
        task = run.message.task
        task.done = not retry
        if retry:
            task.allowed += 1
            again = Message(task, run.message.attempt + 1)
            self.server.broker.append(Delivery(again))
        if task.kind.late and run.token:
            self.settled.append(run.token)
        self.released += run.releases()
