"""One call reads a few large tasks at most, since the server does nothing else meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery.utils.collections import LimitedSet

from celery_throttle.limits.key import LimitRef
from celery_throttle.operations.lines import Claimant, WithdrawPlans, discard, scan_call
from celery_throttle.store.script import Call
from celery_throttle.worker.claim import Claims
from celery_throttle.worker.claims.revoked import RevokedTasks
from tests.protocol import SECOND, Protocol, make_protocols

LARGE, COUNT = b"x" * 300_000, 40

#: A call goes on to another task until it has read 1,000,000 bytes.
PER_CALL = 4

#: A step of a scan returns all fields of a bucket. Each bucket has a few.
PER_SCAN = 4 + 14

IDS = [f"task {number:02}" for number in range(COUNT)]

CLAIMANT = Claimant("drain", 30.0)


@pytest.fixture
def lines(any_server_url: str) -> Iterator[Protocol]:
    """Large tasks in one line, for which their limit has room."""
    for make in make_protocols(any_server_url):
        lines = make({"api": "1000/s burst 1000"})
        for task in IDS:
            lines.park(task, ["api"], message=LARGE, may_run=False)
        yield lines
        lines.check()
        lines.limiter.run_plan(discard(lines.keys, "q"))


def calls_of(lines: Protocol, use: Callable[[], Any], command: str = "evalsha") -> int:
    lines.client.config_resetstat()
    use()
    calls: int = lines.client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]
    return calls


def claim_all(lines: Protocol) -> list[int]:
    tokens: list[int] = []
    while rows := lines.claim("w", COUNT):
        tokens += [row.token for row in rows]
    return tokens


def quarantine_all(lines: Protocol) -> None:
    for token in claim_all(lines):
        lines.set_aside("w", token)


def scan(lines: Protocol, call: Callable[[Any], Call]) -> list[Any]:
    """Return the replies of a scan."""
    replies: list[Any] = []
    cursor = b"0"
    while cursor != b"0" or not replies:
        replies.append(lines.store.run(call(cursor)))
        cursor = replies[-1][0]
    return replies


def test_claims(lines: Protocol) -> None:
    """The next poll is at once."""
    found: list[str] = []
    counts: list[int] = []
    polls: list[int] = []
    while len(found) < COUNT:
        rows = lines.claim("w", COUNT)
        assert all(row.message == LARGE and row.admitted for row in rows)
        found += [row.id for row in rows]
        counts.append(len(rows))
        polls.append(lines.ask)
    assert found == IDS
    assert counts == [PER_CALL] * (COUNT // PER_CALL)
    assert set(polls[:-1]) == {0}


def test_a_claim_of_small_tasks_among_large_ones(lines: Protocol) -> None:
    """Their sizes are not known before they are read."""
    for number in range(100):
        lines.park(f"small {number}", ["api"], rank=number % 2, may_run=False)
    rows = lines.claim("w", 200)
    assert sum(row.message == LARGE for row in rows) == PER_CALL


def test_tasks_that_are_revoked(lines: Protocol) -> None:
    counts = [len(lines.withdraw("w", *IDS)) for _ in range(COUNT // PER_CALL + 1)]
    assert counts == [PER_CALL] * (COUNT // PER_CALL) + [0]


def test_lines_that_are_withdrawn(lines: Protocol) -> None:
    plans = WithdrawPlans(lines.keys, None, lines.now)
    names = list(lines.limiter.run_plan(plans.lines("q")))
    found: list[str] = []
    score: Any = "-inf"
    while names:
        call = plans.lines_call(
            *(CLAIMANT, "q", names),
            first_token=len(found) + 1,
            parked_by=lines.now,
            most=100,
            score=score,
        )
        done, score, *rows = lines.store.run(call)
        assert len(rows) <= PER_CALL
        found += [task.decode() for _, _, task in rows]
        names = names[done:]
    assert found == IDS


@pytest.mark.parametrize("which", ["own", "dead"])
def test_claims_that_are_requeued(lines: Protocol, which: str) -> None:
    tokens = claim_all(lines)
    lines.now += 60 * SECOND
    for left in range(COUNT - PER_CALL, -1, -PER_CALL):
        given = tokens[COUNT - PER_CALL - left :] if which == "own" else []
        assert lines.back("w", which, *given) == left
        assert len(lines.waiting()) == COUNT - left
        lines.check()


def test_quarantined_tasks_that_are_listed(lines: Protocol) -> None:
    quarantine_all(lines)
    key = lines.keys.quarantine
    replies = scan(lines, lambda cursor: scan_call(key, "quarantine", cursor))
    pages = [[task.decode() for task, *_ in rows] for _, *rows in replies]
    assert sorted(task for page in pages for task in page) == IDS
    assert max(map(len, pages)) <= PER_SCAN
    lines.recall(*IDS)


def test_quarantined_tasks_that_are_withdrawn(lines: Protocol) -> None:
    quarantine_all(lines)
    plans, tokens = WithdrawPlans(lines.keys, None, lines.now), iter(range(1, 10_000, 100))
    replies = scan(
        lines,
        lambda cursor: plans.quarantined_call(CLAIMANT, "q", cursor, first_token=next(tokens)),
    )
    pages = [[task.decode() for _, _, task in rows] for _, _, *rows in replies]
    assert sorted(task for page in pages for task in page) == IDS
    assert max(map(len, pages)) <= PER_SCAN


def test_quarantined_tasks_that_are_discarded(lines: Protocol) -> None:
    quarantine_all(lines)
    calls = calls_of(lines, lambda: lines.limiter.run_plan(discard(lines.keys, "q")))
    assert calls > COUNT / PER_SCAN
    assert not lines.client.exists(lines.keys.quarantine)


def test_messages_that_are_searched_for_stamps(lines: Protocol) -> None:
    key = lines.keys.queue("q").messages
    replies = scan(lines, lambda cursor: scan_call(key, "messages", cursor))
    assert max(len(rows) for _, *rows in replies) <= PER_SCAN
    assert sorted(task.decode() for _, *rows in replies for task, _ in rows) == IDS


def test_tasks_that_are_listed(lines: Protocol) -> None:
    page: Any = None

    def read() -> None:
        nonlocal page
        page = lines.limiter["api"].list_waiting(first=1, most=30)

    assert calls_of(lines, read) >= 30 / PER_CALL
    assert [task.task_id for task in page.tasks] == IDS[1:31]


def test_a_claimed_task_that_is_explained(lines: Protocol) -> None:
    def explain() -> None:
        assert lines.limiter.explain("unknown").location == "unknown"

    tokens = claim_all(lines)
    assert {lines.limiter.explain(task).location for task in IDS[::20]} == {"claimed"}
    calls = calls_of(lines, explain)
    lines.claim("w", 0, settled=tokens)
    assert calls >= calls_of(lines, explain) + 2


def test_claims_that_are_counted(lines: Protocol) -> None:
    plan = WithdrawPlans(lines.keys, LimitRef("api", None)).count_claims

    def count() -> None:
        counts.append(lines.limiter.run_plan(plan()))

    counts: list[int] = []
    before = calls_of(lines, count)
    claim_all(lines)
    assert calls_of(lines, count) >= before + 3
    assert counts == [0, COUNT]


def test_a_forecast_samples_few_of_them(lines: Protocol) -> None:
    reads = calls_of(lines, lines.limiter["api"].forecast, "hget")
    assert reads <= 3 * PER_CALL


def test_a_worker_requeues_all_of_its_claims(lines: Protocol) -> None:
    claims = Claims(lines.store, lines.keys, "w", lambda: None)
    claims.requeue_uncertain(claim_all(lines))
    claims.requeue_pending()
    assert lines.waiting() == IDS


def test_a_worker_withdraws_all_revoked_tasks(
    lines: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery.worker.state.revoked", LimitedSet(data=IDS))
    claims = Claims(lines.store, lines.keys, "w", lambda: None)
    call: Any = SimpleNamespace(
        claims=claims,
        lease=30.0,
        queue_keys=lambda: list(lines.keys.queue("q")),
        lock=threading.Lock(),
    )
    revoked = RevokedTasks(call)
    assert len(revoked.withdraw()) == COUNT
    assert lines.waiting() == []
