"""What must hold between any two calls: what the server keeps is what should be where."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from hashlib import sha1
from itertools import chain
from pathlib import Path
from typing import Any

from celery_throttle.errors import CostError
from celery_throttle.limits.duration import ENDLESS_US
from celery_throttle.limits.key import LimitRef
from celery_throttle.store.script import Call, Script
from tests.key_catalogue import Expiry
from tests.model.claimants import AHEAD, Worker
from tests.model.tasks import Kind
from tests.model.watched import Server
from tests.model.world import QUEUES, World
from tests.protocol import RANK, SECOND
from tests.redis_keys import CATALOGUE, kind_of
from tests.totals import joined, left

_SOURCE = (Path(__file__).parent / "look.lua").read_bytes()
_LOOK = Call(Script("look", _SOURCE, sha1(_SOURCE, usedforsecurity=False).hexdigest()), ())

#: What each line adds to the time at which a key is forgotten, as in ``key_cap.lua``.
LINED = 2**53

#: How long the longest wait can be: a pause, a lease, or a few units of the slowest limit.
FARTHEST = 120_000_000


class Kept:
    """What the server keeps, by kind and name.

    Attributes:
        by_kind: of each kind of key: name to content.
    """

    def __init__(self, server: Server) -> None:
        self.by_kind: dict[str, dict[bytes, Any]] = defaultdict(dict)
        prefix = server.protocol.keys.prefix
        for name, lives, content in server.protocol.store.run(_LOOK):
            kind = name.decode()[len(prefix) + 1 :].partition(":")[0]
            self.by_kind[kind][name] = content
            about = kind_of(name.decode())
            assert about, f"{name} is not in {CATALOGUE}"
            assert lives > 0 or about.expiry is not Expiry.ALWAYS, f"{name} does not expire"

    def pairs(self, kind: str, name: str) -> dict[bytes, Any]:
        """A hash, or a sorted set with its scores."""
        found = self.by_kind[kind].get(name.encode(), [])
        return dict(zip(found[::2], found[1::2], strict=True))

    def times(self, kind: str, name: str) -> dict[bytes, int]:
        """A sorted set by times."""
        return {one: int(score) for one, score in self.pairs(kind, name).items()}

    def deadlines(self, kind: str, name: str) -> dict[bytes, int]:
        """A sorted set of leases, see ``leases.lua``."""
        return {one: till for one, till in self.times(kind, name).items() if one}

    def names(self, kind: str) -> list[bytes]:
        return list(self.by_kind[kind])

    def ranks(self, waiting: bytes) -> dict[bytes, int]:
        """Lines of a waiting list, the next first, and the ranks that they have there."""
        found = self.times("waiting", waiting.decode())
        return {line: score // RANK for line, score in found.items()}


def check(server: Server, workers: Iterable[Worker], refs: Iterable[LimitRef]) -> Kept:
    """All of it."""
    kept, refs = Kept(server), list(refs)
    check_tasks(server, kept)
    check_copies(server, workers)
    check_lines(server, kept, refs)
    check_key_caps(server, kept)
    check_holders(server, kept, refs)
    check_totals(server, kept, refs)
    return kept


def check_tasks(server: Server, kept: Kept) -> None:
    """Lines and claims hold what they should, and nothing else."""
    keys, world = server.protocol.keys, server.world
    for queue, line in world.lines.items():
        found = kept.pairs("messages", keys.queue(queue).messages)
        expected = {
            task.encode(): [one.line.encode(), one.message.packed] for task, one in line.items()
        }
        assert found == expected
    claims = {keys.claims(worker).encode() for worker in world.claims}
    assert claims == set(kept.names("claims"))
    for worker, held in world.claims.items():
        found = kept.pairs("claims", keys.claims(worker))
        assert found == {
            str(token).encode(): [
                one.line.encode(),
                one.message.task.id.encode(),
                one.message.packed,
            ]
            for token, one in held.items()
        }
    assert kept.pairs("quarantine", keys.quarantine) == {
        task.encode(): [one.line.encode(), one.message.packed] for task, one in world.aside.items()
    }
    _check_deadlines(world, kept.deadlines("workers", keys.workers), _encoded(world.leases))
    assert kept.times("unacknowledged", keys.unacknowledged) == _encoded(world.parks)
    pauses = {keys.pause(ref).encode(): till for ref, till in world.pauses.items()}
    found = {name: int(value.split(b".")[0]) for name, value in kept.by_kind["pause"].items()}
    _check_deadlines(world, found, pauses)


def _check_deadlines(
    world: World, found: Mapping[bytes, int], expected: Mapping[bytes, int]
) -> None:
    """Each is as far ahead as it was made, or farther by as much as the clock stepped back."""
    certain = {name for name, till in expected.items() if till > world.passed or not world.back}
    assert certain <= set(found) <= set(expected)
    for name in certain:
        late = found[name] - world.clock - (expected[name] - world.passed)
        assert 0 <= late <= world.back, f"{name!r} ends {late} us late"


def check_copies(server: Server, workers: Iterable[Worker]) -> None:
    """Never lost: a task that is not done is somewhere."""
    world = server.world
    somewhere = {one.message.task for one in world.in_lines()}
    somewhere |= {one.message.task for held in world.claims.values() for one in held.values()}
    somewhere |= {one.message.task for one in world.aside.values()}
    somewhere |= {one.message.task for one in server.broker}
    somewhere |= {one.message.task for each in workers for one in each.unacknowledged()}
    lost = [task.id for task in world.tasks if not task.done and task not in somewhere]
    assert not lost, f"lost: {lost}"


def check_lines(server: Server, kept: Kept, refs: Iterable[LimitRef]) -> None:
    """Each line waits at one limit, in a list that is looked at in time."""
    keys, world = server.protocol.keys, server.world
    members: dict[bytes, set[str]] = defaultdict(set)
    for one in world.in_lines():
        members[one.line.encode()].add(one.message.task.id)
    assert set(kept.names("line")) == set(members)
    for line, tasks in members.items():
        assert set(kept.pairs("line", line.decode())) == {task.encode() for task in tasks}
    backlogs: Counter[bytes] = Counter()
    places: Counter[bytes] = Counter()
    waits: dict[bytes, dict[bytes, Any]] = defaultdict(dict)
    for queue in QUEUES:
        names = keys.queue(queue)
        at = {line: about[0] for line, about in kept.pairs("lines", names.lines).items()}
        for line, (_, backlog) in kept.pairs("lines", names.lines).items():
            backlogs[backlog] += len(members[line])
        due = kept.times("due", names.due)
        assert set(due) == set(at.values()), "a list at which no claim looks"
        # What is behind a pause until resumed is not looked at.
        paused = any(till > world.passed + FARTHEST for till in world.pauses.values())
        far = ENDLESS_US if paused else 0
        assert all(till <= world.clock + world.back + FARTHEST + far for till in due.values())
        for waiting in due:
            lines = kept.ranks(waiting)
            places.update(list(lines))
            for line, rank in lines.items():
                first, *_ = kept.times("line", line.decode()).values()
                assert rank == first // RANK, "a line has not the rank of its first task"
            assert all(at[line] == waiting for line in lines), "a line that waits elsewhere"
        for ref in refs:
            waiting = keys.waiting_list(queue, ref).encode()
            if waiting in due:
                waits[keys.waiting_lists(ref).encode()][waiting] = [
                    names.due.encode(),
                    names.polls.encode(),
                ]
    assert places == Counter(list(members)), "a line waits at exactly one limit"
    assert {name: int(count) for name, count in kept.by_kind["backlog"].items()} == backlogs
    check_key_backlogs(server, kept, backlogs)
    assert {
        name: kept.pairs("waiting-lists", name.decode()) for name in kept.names("waiting-lists")
    } == waits
    waited = chain.from_iterable(kept.by_kind["waiting-list-index"].values())
    assert Counter(waited) == Counter(list(waits))


def check_key_backlogs(server: Server, kept: Kept, backlogs: Mapping[bytes, int]) -> None:
    """The keys of each name with waiting tasks, and how many wait; '' stands for all of them."""
    expected: dict[bytes, Counter[bytes]] = defaultdict(Counter)
    for backlog, count in backlogs.items():
        name, _, key = backlog.decode().partition(":backlog:")[2].partition(":")
        if key:
            expected[f"{server.protocol.keys.totals(name)}/keys".encode()] += Counter(
                {key.encode(): count, b"": count}
            )
    names = [name for name in kept.names("totals") if name.endswith(b"/keys")]
    assert {name: kept.times("totals", name.decode()) for name in names} == expected


def check_totals(server: Server, kept: Kept, refs: Iterable[LimitRef]) -> None:
    """Each task that has joined a line waits there, or it is counted how it left."""
    waiting = Counter(
        ref.name for one in server.world.in_lines() for ref in one.message.task.kind.refs
    )
    for name in {ref.name for ref in refs}:
        found = kept.pairs("totals", server.protocol.keys.totals(name))
        totals = {field.decode(): int(total) for field, total in found.items()}
        assert joined(totals) == left(totals) + waiting[name], totals


def check_key_caps(server: Server, kept: Kept) -> None:
    """Where keys are counted, those are of which tasks wait, with the number of their lines."""
    keys = server.protocol.keys
    lines = {one.line: one.message.task.kind.refs for one in server.world.in_lines()}
    counted = Counter(
        keys.entries(ref).encode()
        for ref in chain.from_iterable(lines.values())
        if server.world.max_keys_of(ref)
    )
    found: Counter[bytes] = Counter()
    for name in kept.names("key-cap"):
        for entries, score in kept.times("key-cap", name.decode()).items():
            found[entries] = score // LINED
    assert +found == counted


def check_holders(server: Server, kept: Kept, refs: Iterable[LimitRef]) -> None:
    """Slots are held by those who took them and have not given them back."""
    for ref in refs:
        found = kept.times("entries", server.protocol.keys.entries(ref))
        _check_deadlines(server.world, found, _encoded(server.world.held(ref)))


def check_due(server: Server, kept: Kept, refs: Iterable[LimitRef]) -> None:
    """Never idle: a list is looked at no later than the first task of its first line could pass."""
    keys, world = server.protocol.keys, server.world
    for queue in QUEUES:
        due = kept.times("due", keys.queue(queue).due)
        for ref in refs:
            waiting = keys.waiting_list(queue, ref).encode()
            if waiting not in due:
                continue
            line = next(iter(kept.ranks(waiting))).decode()
            first = next(iter(kept.pairs("line", line))).decode()
            kind = world.lines[queue][first].message.task.kind
            late = due[waiting] - world.clock - _wait(server, kind) - _slack(world, kind)
            assert late <= 0, f"{waiting!r} is looked at {late} us late"


def _slack(world: World, kind: Kind) -> int:
    """What is due comes later if the clock steps back; slots cannot be booked ahead.

    And the lease of one that began with a start booked ahead is renewed from now: it ends earlier
    than it was said to.
    """
    slots = any(world.slots_of(ref) for ref in kind.refs)
    return (world.back and world.back + AHEAD) + slots * 2 * AHEAD


def _wait(server: Server, kind: Kind) -> int:
    """How long a task of that kind would wait, were it the only one."""
    try:
        decision = server.protocol.limiter.peek(kind.refs, kind.cost)
    except CostError:  # it can never pass, and takes nothing from anybody while it waits to be told
        return FARTHEST
    limits = [limit for ref in kind.refs for limit in server.world.histories.in_force(ref)]
    queued = any(limit.algorithm == "leaky-queue" for limit in limits)
    if decision.paused == math.inf:
        return ENDLESS_US
    seconds = decision.reset_after if queued else decision.retry_after or 0
    return round(seconds * SECOND)


def check_turns(
    before: Kept, after: Kept, served: Mapping[bytes, int], lines: Collection[bytes]
) -> None:
    """Lines that wait for one limit, and need no other, are served by rank, then in turn.

    Args:
        before, after: what was kept around a claim.
        served: tasks it took, by their lines.
        lines: those that need one limit. Others may wait elsewhere for a moment.
    """
    for waiting in before.names("waiting"):
        found, rest = before.ranks(waiting), after.ranks(waiting)
        found = {line: rank for line, rank in found.items() if line in lines}
        worst = max((rank for line, rank in found.items() if line in served), default=0)
        stayed = {line: rank for line, rank in found.items() if line in rest}
        assert all(rest[line] >= worst for line in stayed), "one of better rank had to wait"
        for rank in set(stayed.values()):
            same = [line for line in stayed if stayed[line] == rest[line] == rank]
            _check_turns_of(same, [line for line in rest if line in same], served)


def _check_turns_of(before: list[bytes], after: list[bytes], served: Mapping[bytes, int]) -> None:
    times = [served.get(line, 0) for line in before]
    assert times == sorted(times, reverse=True), "a line was served out of turn"
    assert not times or times[0] - times[-1] <= 1, "a line was served twice in a turn"
    least = times[-1] if times else 0
    expected = [line for line in before if served.get(line, 0) == least]
    expected += [line for line in before if served.get(line, 0) > least]
    assert after == expected, "a line lost its turn"


def _encoded(times: Mapping[str, int]) -> dict[bytes, int]:
    return {name.encode(): time for name, time in times.items()}
