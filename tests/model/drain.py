"""The end of a run: everything that waits is done in bounded time, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Sequence

from tests.model import laws
from tests.model.claimants import Worker
from tests.model.gate import bring
from tests.model.watched import Server
from tests.model.world import LEASE
from tests.servers.server import assert_nothing_left_behind

#: What may be left of a server that nobody uses, until it expires.
LEFT = {
    *("limits", "rules", "names", "own", "changes", "totals"),
    *("state", "entries", "pause", "paused", "paused-by", "unacknowledged", "polls", "key-cap"),
}


def drain(server: Server, workers: Sequence[Worker]) -> None:
    """One worker ends well, all others crash; then another one does what is to be done."""
    first, *others = workers
    first.give_back(first.booked)
    for run in list(first.running):
        first.finish(run)
    for delivery in first.deliveries:
        server.broker.append(delivery)
    server.recall()
    for ref in list(server.world.pauses):
        server.protocol.limiter[ref].resume()
        server.world.resume(ref)
    for worker in others:
        worker.crash()
    last = Worker("last", server)
    claims, most = 0, 40 + 6 * len(server.world.tasks)
    while server.broker or last.deliveries or any(server.world.in_lines()) or server.world.claims:
        claims += 1
        assert claims < most, f"{claims} claims, and tasks still wait"
        _turn(last)
    server.advance(LEASE + 1)
    last.claim(0)
    while server.protocol.dead:
        last.reclaim(server.protocol.dead.decode(), 100)
        last.claim(0)
    server.world.histories.check()
    kept = laws.check(server, [last], [])
    left = {kind for kind, found in kept.by_kind.items() if found}
    assert left <= LEFT, left
    assert_nothing_left_behind(server.protocol.client)
    server.protocol.check()


def _turn(worker: Worker) -> None:
    server = worker.server
    for some in (worker.deliveries, server.broker):
        while some:
            bring(worker, some.pop(0))
    worker.claim(8)
    worker.start_booked()
    for run in list(worker.running):
        worker.finish(run)
    dead = server.protocol.dead.decode()
    if dead:
        worker.reclaim(dead, 100)
    # In time for what is due, or for a lease that ends.
    times = [
        server.protocol.ask,
        *(till + server.world.back - server.world.passed for till in server.world.leases.values()),
    ]
    server.advance(max(1, min(times)))
