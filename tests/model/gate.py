"""The gate of a worker: may this task run now? If not, it is parked. As ``worker/gate.py`` asks."""

from __future__ import annotations

from celery_throttle.operations.acquire import GateRequest, gate_call
from celery_throttle.operations.waiting import Mode
from tests.model.claimants import AHEAD, Worker
from tests.model.tasks import Kind
from tests.model.watched import Delivery, Run
from tests.model.world import LEASE, MEMORY
from tests.protocol import Parked


def bring(
    worker: Worker, delivery: Delivery, *, mode: Mode = Mode.MAY_RUN, lost: bool = False
) -> str:
    """Bring a message to the gate; gives what became of it."""
    world, task = worker.world, delivery.message.task
    if task.revoked or 0 < task.expires <= world.clock:
        return _end(worker, delivery, "dropped")
    slots = any(world.slots_of(ref) for ref in task.kind.refs)
    if not delivery.redelivered and not slots:
        outcome = _take(worker, task.kind)
        if lost:
            worker.deliveries.append(delivery)
            return "lost at the gate"
        if outcome == 1:
            worker.start(Run(delivery.message, "", (), delivery.token, world.clock))
            return "admitted"
        if outcome < 0:
            return _end(worker, delivery, "never")
    return _park(worker, delivery, mode=mode, lost=lost)


def _take(worker: Worker, kind: Kind) -> int:
    """Ask ``admit.lua``."""
    limiter, world = worker.server.protocol.limiter, worker.world
    want = GateRequest(limiter.require(kind.refs, kind.cost), kind.times)
    (reply,) = limiter.store.run(gate_call(limiter.plans, [want], AHEAD))
    if reply[0] != 1:
        worker.server.check_refusal(counted=False)
        assert reply[0] == 0 or world.never_fits(kind)
        return int(reply[0])
    _, times, at_once, later, apart, good, *marks = reply
    assert 1 <= times <= (1 if marks else kind.times)
    assert good <= AHEAD
    _check_nobody_waits(worker, kind)
    world.check_room(kind.refs)
    for number in range(times):
        wait = 0 if number < at_once else later + (number - at_once) * apart // 1000
        assert wait <= AHEAD
        world.admit(kind.refs, kind.cost, wait)
    return 1


def _check_nobody_waits(worker: Worker, kind: Kind) -> None:
    """A limit at which a line waits grants nothing to what arrives.

    A line that needs several limits may wait at another one.
    """
    waiting = {one.message.task.kind.limits for one in worker.world.in_lines()}
    overtaken = [ref for ref in kind.limits if (ref,) in waiting]
    assert not overtaken, f"{overtaken} let a task pass before those that wait"


def _park(worker: Worker, delivery: Delivery, *, mode: Mode, lost: bool) -> str:
    world, server, message = worker.world, worker.server, delivery.message
    kind = message.task.kind
    server.protocol.tokens[worker.name] += 1
    holder = f"{worker.name} {server.protocol.tokens[worker.name]}"
    told = _tell(worker)
    reply = server.protocol.park(
        message.task.id,
        kind.limits,
        queue=kind.queue,
        identity=message.identity,
        cost=kind.cost,
        rank=kind.rank,
        expires=message.task.expires,
        max_wait=kind.max_wait,
        redelivered=delivery.redelivered,
        acknowledged=told,
        message=message.packed,
        holder=holder,
        lease=LEASE,
        horizon=AHEAD,
        mode=mode,
    )
    known = delivery.redelivered and message.identity in world.parks
    assert known == (reply.outcome == "known")
    if reply.outcome == "admitted":
        assert mode is Mode.MAY_RUN
        assert reply.wait <= AHEAD
        assert message.task.id not in world.lines[kind.queue]
        assert reply.slots == world.places_of(kind.refs)
        _check_nobody_waits(worker, kind)
        world.check_room(kind.refs)
        world.admit(kind.refs, kind.cost, reply.wait, holder)
    elif reply.outcome == "alone":
        assert mode is Mode.NO_PROCESS
        _check_nobody_waits(worker, kind)
        world.check_room(kind.refs)
        worker.deliveries.append(delivery)
        return reply.outcome
    elif reply.outcome == "parked":
        if message.task.id not in world.lines[kind.queue]:
            world.check_room(kind.refs)
            world.check_full(kind.refs, full=False)
            world.join(message)
    elif reply.outcome == "full":
        world.check_full(kind.refs, full=True)
    elif not told:
        server.check_refusal(counted=reply.outcome in ("late", "crowded", "never"))
    if lost:
        worker.released += [(ref, holder) for ref in kind.refs]
        # It is brought to the gate again, and meanwhile somebody else may start it.
        message.task.allowed += reply.outcome == "parked"
        worker.deliveries.append(delivery)
        return f"lost {reply.outcome}"
    return _after(worker, delivery, reply, holder)


def _after(worker: Worker, delivery: Delivery, reply: Parked, holder: str) -> str:
    kind = delivery.message.task.kind
    if reply.outcome == "admitted":
        run = Run(delivery.message, holder, reply.slots, delivery.token, worker.world.clock)
        worker.start(run)
    elif reply.outcome not in ("parked", "known"):
        assert reply.outcome != "late" or kind.max_wait >= 0
        assert reply.outcome != "never" or worker.world.never_fits(kind)
        return _end(worker, delivery, reply.outcome)
    elif delivery.token:
        worker.settled.append(delivery.token)
    else:
        worker.parked.append(delivery)
    return reply.outcome


def _tell(worker: Worker) -> list[str]:
    """Identities that are acknowledged. Those of which nobody tells are forgotten in time."""
    told, worker.acked = worker.acked, []
    world = worker.world
    for identity in told:
        world.parks.pop(identity, None)
    old = [one for one, since in world.parks.items() if since <= world.clock - MEMORY]
    for identity in old if told else ():
        del world.parks[identity]
        world.tasks[int(identity.split()[0])].allowed += 1
    return told


def _end(worker: Worker, delivery: Delivery, outcome: str) -> str:
    """It fails, or is announced as revoked, and is acknowledged."""
    delivery.message.task.done = True
    if delivery.token:
        worker.settled.append(delivery.token)
    return outcome
