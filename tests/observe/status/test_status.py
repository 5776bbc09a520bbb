"""The status of limits and tasks, against a server on which time stands still."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

import pytest

from celery_throttle import ConfigurationError, Limiter, UnknownLimitError
from celery_throttle.limiter.limiter import apply_rules
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.rules.reader import read_rules
from celery_throttle.observe.status.fleet import is_consumed, read_rules_in_force, read_workers
from celery_throttle.observe.values import LimitStatus, Stranded
from celery_throttle.operations.rules import pack_report, report_rules
from celery_throttle.store.script import Argument, Call, script
from tests.ends import MakeEnd
from tests.protocol import SECOND, Protocol


@pytest.fixture
def lines(redis_url: str) -> Any:
    found = Protocol(redis_url, {"api": "1/s", "mail": "2/s", "slots": "2 at once"})
    yield found
    found.close()


def status_of(lines: Protocol, name: str) -> LimitStatus:
    return next(one for one in lines.limiter.status().limits if one.name == name)


def test_of_a_limit_that_nobody_uses(lines: Protocol) -> None:
    status = lines.limiter.status()
    assert [one.name for one in status.limits] == ["api", "mail", "slots"]
    assert (status.next, status.workers, status.stranded) == (None, 0, ())
    api = status.limits[0]
    assert (api.clauses, api.waiting, api.runnable, api.oldest) == (("1/s",), 0, 0, None)
    assert (api.forecast, api.pauses, api.weight) == (None, (), 1)
    assert api.origin is not None
    assert api.origin.layer == "code"
    assert (api.usage[0].used, api.usage[0].most) == (0, 1)


def test_pages(lines: Protocol) -> None:
    first = lines.limiter.status(most=2)
    assert ([one.name for one in first.limits], first.next) == (["api", "mail"], "mail")
    last = lines.limiter.status(after="mail", most=2)
    assert ([one.name for one in last.limits], last.next) == (["slots"], None)


def test_what_waits(lines: Protocol) -> None:
    lines.limiter["api"].try_acquire()
    for number in range(5):
        lines.park(f"t{number}", ["api"])
        lines.now += SECOND // 10
    api = status_of(lines, "api")
    assert (api.waiting, api.waiting_keys, api.runnable) == (5, 0, 0)
    assert api.oldest == pytest.approx(0.5, abs=1e-3)
    assert api.forecast is not None
    assert (api.forecast.seconds, api.forecast.cause) == (None, "workers")  # none consumes q
    assert api.forecast.earliest == lines.time(4.5)
    assert api.totals.parked == 5
    assert lines.limiter.status().stranded == (Stranded("q", 5, "queue", "q"),)


def test_limits_are_measured_several_in_one_call(
    lines: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"limit-{number:02}" for number in range(45)]
    for name in names:
        lines.limiter[name].define("1/h")
        lines.limiter[name].acquire()
        lines.park(f"{name} 1", [name])
        lines.park(f"{name} 2", [name, "api"])
    run, measured = lines.limiter.store.run, []

    def count(call: Call) -> Any:
        if call.script is script("measure_waiting"):
            measured.append(len(call.keys))
        return run(call)

    monkeypatch.setattr(lines.limiter.store, "run", count)
    status = lines.limiter.status()
    assert [(one.name, one.waiting) for one in status.limits[1:46]] == [(one, 2) for one in names]
    assert all(one.oldest is not None for one in status.limits[1:46])
    assert measured == [20, 20, 5]
    measured.clear()
    for number in range(100):  # after so many lines a call leaves the other limits to the next
        lines.park(f"mail {number}", [names[0], ("mail", number)])
    status = lines.limiter.status()
    assert [one.waiting for one in status.limits[1:4]] == [102, 2, 2]
    assert measured == [20, 20, 20, 4]


def test_a_queue_is_stranded_only_after_all_workers_have_reported_theirs(lines: Protocol) -> None:
    client, keys = lines.client, lines.limiter.keys
    client.zadd(keys.membership, {"worker": lines.now + 3600 * SECOND})
    client.expire(keys.membership, 60)
    lines.limiter["api"].try_acquire()
    lines.park("t0", ["api"])
    lines.now += 14 * SECOND
    lines.park("t1", ["api"])
    assert lines.limiter.status().stranded == ()
    assert lines.limiter["api"].status().queues[0].consumed
    lines.now += 2 * SECOND
    assert lines.limiter.status().stranded == (Stranded("q", 2, "queue", "q"),)
    assert not lines.limiter["api"].status().queues[0].consumed
    client.zadd(keys.consumed_queues, {keys.queue("q").lines: lines.now})
    client.expire(keys.consumed_queues, 60)
    assert lines.limiter.status().stranded == ()


def beat(lines: Protocol, worker: str, queue: str, lease: float) -> None:
    """Send the heartbeat of a worker that consumes one queue; its last one has no lease."""
    keys = lines.limiter.keys
    names = [keys.membership, keys.limits, keys.quarantine, keys.temporary_queues]
    names += [keys.consumed_queues, keys.changes, keys.worker_queues, keys.limits_with_keys]
    names += [keys.queue(queue).lines, keys.queue("earlier").lines]
    lease_us = round(lease * SECOND)
    args: list[Argument] = [lines.now, worker, lease_us, 0, 300 * SECOND, 600 * SECOND, "0", ""]
    lines.store.run(Call(script("heartbeat"), names, args))


def test_a_lost_worker_is_listed_for_a_quarter_of_an_hour_and_one_that_ended_is_not(
    lines: Protocol,
) -> None:
    observer = lines.limiter.observer

    def listed() -> list[tuple[str, bool, datetime | None]]:
        found = lines.limiter.run_plan(read_workers(observer, 10))
        return [(one.name, one.live, one.lost) for one in found]

    lost_at = lines.time(30)
    for worker in ("ended", "lost", "other"):
        beat(lines, worker, "q", 30)
    beat(lines, "ended", "q", -45)
    lines.now += 31 * SECOND
    beat(lines, "other", "q", 30)
    assert listed() == [("lost", False, lost_at), ("other", True, None)]
    assert lines.limiter.status().workers == 1
    lines.now += 895 * SECOND
    beat(lines, "other", "q", 30)
    assert listed() == [("lost", False, lost_at), ("other", True, None)]
    lines.now += 10 * SECOND
    beat(lines, "other", "q", 30)
    assert listed() == [("other", True, None)]


def test_a_queue_is_stranded_soon_after_its_last_worker_has_ended(lines: Protocol) -> None:
    """As when a deploy renames the queue. The queues of other workers are not."""
    lines.limiter["api"].try_acquire()
    for queue in ("kept", "renamed"):
        lines.park(f"in {queue}", ["api"], queue=queue)
    for queue in ("kept", "renamed"):
        beat(lines, f"old {queue}", queue, 30)
    beat(lines, "new", "kept", 30)
    for queue in ("kept", "renamed"):
        beat(lines, f"old {queue}", queue, -45)
    lines.now += 10 * SECOND
    beat(lines, "new", "kept", 30)
    assert lines.limiter.status().stranded == ()
    lines.now += 5 * SECOND
    assert lines.limiter.status().stranded == (Stranded("renamed", 1, "queue", "renamed"),)
    assert lines.limiter.run_plan(is_consumed(lines.limiter.observer, "kept"))
    assert not lines.limiter.run_plan(is_consumed(lines.limiter.observer, "renamed"))


def test_a_queue_without_tasks_is_consumed_while_a_live_worker_reports_it(lines: Protocol) -> None:
    client, keys = lines.client, lines.limiter.keys

    def consumes(queue: str) -> bool:
        return lines.limiter.run_plan(is_consumed(lines.limiter.observer, queue))

    client.zadd(keys.worker_queues, {keys.queue("q").lines: lines.now})
    client.expire(keys.worker_queues, 60)
    assert not consumes("q")
    client.zadd(keys.membership, {"worker": lines.now + 3600 * SECOND})
    client.expire(keys.membership, 60)
    assert consumes("q")
    assert not consumes("other")
    lines.now += 61 * SECOND
    assert not consumes("q")


def test_what_could_run_and_is_not_taken(lines: Protocol) -> None:
    lines.limiter["api"].try_acquire()
    for number in range(5):
        lines.park(f"t{number}", ["api"])
    lines.now += 2 * SECOND
    assert status_of(lines, "api").runnable == 1  # one unit is there


def test_keys(lines: Protocol) -> None:
    for key, tasks in (("a", 2), ("b", 3)):
        lines.limiter["mail", key].try_acquire()
        for number in range(tasks):
            lines.park(f"{key}{number}", [("mail", key)])
    lines.limiter["mail", "a"].pause(60, reason="spam", by="ann")
    lines.limiter["mail", "c"].define("1/m")
    mail = status_of(lines, "mail")
    assert (mail.waiting, mail.waiting_keys, mail.paused_keys, mail.own_keys) == (5, 2, 1, 1)
    details = lines.limiter["mail"].status()
    assert details.top_keys == (("b", 3), ("a", 2))
    assert [key for key, _ in details.top_paused_keys] == ["a"]
    assert [(queue.name, queue.waiting) for queue in details.queues] == [("q", 5)]
    of_key = lines.limiter["mail", "a"].status()
    assert (of_key.waiting, of_key.key) == (2, "a")
    (pause,) = of_key.pauses
    assert (pause.key, pause.seconds) == ("a", 60)
    assert pause.author is not None
    assert (pause.author.by, pause.author.reason) == ("ann", "spam")
    assert lines.limiter["mail", "c"].status().clauses == ("1/m",)


def test_a_pause_of_a_limit_is_that_of_its_keys(lines: Protocol) -> None:
    lines.limiter["mail"].pause(None, reason="maintenance")
    (pause,) = lines.limiter["mail", "a"].status().pauses
    assert (pause.key, pause.seconds, pause.until) == (None, math.inf, None)


def test_slots_and_their_tasks(lines: Protocol) -> None:
    lines.park("gate", ["slots"], holder="worker-1 7 gate")
    lines.park("line", ["slots"], holder="worker-1 8 line")
    lines.park("waits", ["slots"])
    details = lines.limiter["slots"].status()
    assert details.slots_used == 2
    assert {(one.holder, one.task_id) for one in details.slots} == {
        ("worker-1", "gate"),
        ("worker-1", "line"),
    }
    assert details.usage[0].used == 2
    lines.limiter.run_plan(
        lines.limiter.plans.release([LimitRef("slots", None)], "worker-1 7 gate")
    )
    (claimed,) = lines.claim()
    found = lines.limiter["slots"].status().slots
    assert ("waits" in {one.task_id for one in found}) == claimed.admitted is True
    lines.claim(room=0, settled=[claimed.token])  # acknowledged, as most tasks are at their start
    found = lines.limiter["slots"].status().slots
    assert {one.task_id for one in found} == {"line", "waits"}


def test_the_origin_of_a_definition(lines: Protocol) -> None:
    lines.limiter["api"].define("5/s", lasts=60, reason="sale", by="ann")
    origin = status_of(lines, "api").origin
    assert origin is not None
    assert origin.author is not None
    assert (origin.layer, origin.author.by, origin.author.reason) == ("run time", "ann", "sale")
    assert origin.until is not None
    assert origin.defined is not None
    assert (origin.until - origin.defined).total_seconds() == 60
    lines.now += 60 * SECOND
    api = status_of(lines, "api")
    assert api.origin is not None
    assert (api.clauses, api.origin.layer, api.origin.until) == (("1/s",), "code", None)


def test_why_a_task_waits(lines: Protocol) -> None:
    lines.add_worker()
    lines.limiter["api"].try_acquire()
    for number in range(5):
        lines.park(f"t{number}", ["api", ("mail", "a")])
    lines.now += SECOND // 2
    task = lines.limiter.explain("t2")
    assert (task.location, task.queue, task.position, task.line_tasks) == ("line", "q", 3, 5)
    assert task.limits == (("api", None, 1.0), ("mail", "a", 1.0))
    assert task.blocked_by == ("api", None)
    assert task.forecast is not None
    assert task.forecast.seconds == pytest.approx(2.5)
    assert task.waited == pytest.approx(0.5)
    lines.limiter["mail"].pause(None, reason="down", by="ann")
    paused = lines.limiter.explain("t2")
    assert paused.forecast is not None
    assert (paused.forecast.seconds, paused.forecast.cause) == (None, "pause")
    assert [(one.key, one.seconds) for one in paused.pauses] == [(None, math.inf)]


def test_where_a_task_is_otherwise(lines: Protocol) -> None:
    lines.limiter["api"].try_acquire()
    lines.park("one", ["api"])
    lines.now += SECOND
    (claimed,) = lines.claim()
    found = lines.limiter.explain("one")
    assert (found.location, found.queue, found.waited) == ("claimed", "q", 1.0)
    assert found.worker
    lines.set_aside("w", claimed.token)
    assert lines.limiter.explain("one").location == "quarantine"
    assert lines.limiter.explain("two").location == "unknown"


def test_tasks_in_queues_without_a_worker_are_found(lines: Protocol) -> None:
    for queue, limit in (("q", "api"), ("r", "mail")):
        lines.park(queue, [limit], queue=queue, may_run=False)
    assert [lines.limiter.explain(task).queue for task in "qr"] == ["q", "r"]
    assert lines.limiter.explain("s").location == "unknown"


def test_pages_of_waiting_tasks(lines: Protocol) -> None:
    for key in "ab":
        lines.limiter["mail", key].try_acquire()
        for number in range(4):
            lines.park(f"{key}{number}", [("mail", key)])
    page = lines.limiter["mail"].list_waiting(most=3)
    seen = [task.task_id for task in page.tasks]
    while page.next is not None:
        page = lines.limiter["mail"].list_waiting(first=page.next, most=3)
        seen += [task.task_id for task in page.tasks]
    assert page.waiting == 8
    assert sorted(seen) == [f"{key}{number}" for key in "ab" for number in range(4)]
    assert [id_ for id_ in seen if id_[0] == "a"] == [f"a{number}" for number in range(4)]
    of_key = lines.limiter["mail", "a"].list_waiting(first=1)
    assert [task.task_id for task in of_key.tasks] == ["a1", "a2", "a3"]
    assert {task.key for task in of_key.tasks} == {"a"}


def test_no_task_has_waited_less_than_no_time(lines: Protocol) -> None:
    """Also if the server's clock was set back while it waited."""
    lines.limiter["api"].try_acquire()
    for number in range(3):
        lines.park(str(number), ["api"])
    lines.now -= 60 * SECOND
    limiter = lines.limiter
    assert [task.waited for task in limiter["api"].list_waiting().tasks] == [0.0] * 3
    assert limiter.explain("0").waited == status_of(lines, "api").oldest == 0.0
    lines.limiter["api"].reset()
    (claimed,) = lines.claim()
    assert claimed.waited == limiter.explain("0").waited == 0.0
    assert limiter["api"].status().totals.waits[0] == 1


def test_an_odd_id_of_a_task_hides_no_other_task(lines: Protocol) -> None:
    lines.limiter["api"].try_acquire()
    for task_id in ("a", "\ud800", "b"):
        lines.park(task_id, ["api"])
        lines.now += SECOND
    shown = r"\xed\xa0\x80"  # its bytes, which are not UTF-8
    page = lines.limiter["api"].list_waiting()
    assert [task.task_id for task in page.tasks] == ["a", shown, "b"]
    lines.park("slot", ["slots"], holder="worker-1 8 \ud800")
    assert [one.task_id for one in lines.limiter["slots"].status().slots] == [shown]


def test_sync_and_asyncio_say_the_same(lines: Protocol, end_of: MakeEnd) -> None:
    lines.limiter["api"].try_acquire()
    lines.park("t", ["api"])
    end = end_of(lines.limiter)
    assert end.status() == lines.limiter.status()
    assert end["api"].status() == lines.limiter["api"].status()
    assert end.explain("t") == lines.limiter.explain("t")
    assert end.changes() == lines.limiter.changes()


def test_a_limit_that_is_not_there(lines: Protocol) -> None:
    with pytest.raises(UnknownLimitError, match="'nope' is not defined"):
        lines.limiter["nope"].status()
    with pytest.raises(UnknownLimitError, match="'nope' is not defined"):
        lines.limiter["nope"].list_waiting()


@pytest.mark.parametrize("limiter", [Limiter("memory://", {"api": "1/s"})])
def test_without_a_server_there_is_no_status(limiter: Limiter) -> None:
    with pytest.raises(ConfigurationError, match="memory"):
        limiter.status()


def test_the_rules_file_in_force_and_workers_with_another(lines: Protocol) -> None:
    limiter = lines.limiter
    assert limiter.status().rules is None
    apply_rules(
        limiter, read_rules('[limits]\napi = "7/s"', "limits.toml"), "limits.toml", by="ann"
    )
    rules = limiter.status().rules
    assert rules is not None
    assert rules.author is not None
    assert (rules.source, rules.author.by, rules.others) == ("limits.toml", "ann", ())
    origin = status_of(lines, "api").origin
    assert origin is not None
    assert origin.layer == "rules"
    lines.client.zadd(lines.keys.membership, {"w1": lines.now + SECOND, "w2": lines.now + SECOND})
    lines.client.pexpire(lines.keys.membership, 60_000)
    for worker, error in (("w1", "limits.toml:3: wrong"), ("w2", ""), ("gone", "")):
        report = pack_report(None, "limits.toml", error)
        limiter.run_plan(report_rules(limiter.plans, worker, report, "", 60))
    rules = limiter.status().rules
    assert rules is not None
    assert sorted((one.worker, one.error) for one in rules.others) == [
        ("w1", "limits.toml:3: wrong"),
        ("w2", None),
    ]
    assert limiter.run_plan(read_rules_in_force(limiter.observer)).limits.keys() == {
        LimitRef("api", None)
    }


def test_a_weight_that_ends(lines: Protocol) -> None:
    lines.limiter["api"].define(weight=5, lasts=60)
    assert status_of(lines, "api").weight == 5
    lines.now += 60 * SECOND
    assert status_of(lines, "api").weight == 1


def test_the_tasks_of_each_queue_are_counted_exactly_or_at_least(lines: Protocol) -> None:
    for number in range(2500):
        lines.park(
            f"m{number}", [("mail", number)], queue="q" if number % 5 else "r", may_run=False
        )
    queues = lines.limiter["mail"].status().queues
    assert [(one.name, one.waiting, one.is_exact) for one in queues] == [
        ("q", 2000, True),
        ("r", 500, True),
    ]


def test_each_waiting_task_has_its_expected_start(lines: Protocol) -> None:
    """Compared with the forecast of each of them."""
    lines.add_worker()
    for number in range(20):
        lines.park(f"a{number}", ["api"], may_run=False)
        lines.park(f"m{number}", ["api", ("mail", number % 3)], may_run=False)
    tasks = lines.limiter["api"].list_waiting(most=50).tasks
    assert len(tasks) == 40
    for task in tasks:
        found = lines.limiter.explain(task.task_id).forecast
        assert found is not None
        assert task.starts_in == pytest.approx(found.seconds, abs=1e-4)
    lines.limiter["api"].pause(None)
    assert {task.starts_in for task in lines.limiter["api"].list_waiting().tasks} == {None}
