"""The figures that answer questions at night, compared with the tasks that wait and start.

Beside 5,000 keys: a young limit, slots that are all in use, a key that is paused without an end.
The scripts run on a real server, at given times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil

import pytest

from celery_throttle.limits.feedback import Feedback
from celery_throttle.observe.status.definitions import preview_pause, preview_resume
from celery_throttle.observe.status.records import record_totals
from celery_throttle.observe.values import LimitDetails, Preview
from tests.protocol import SECOND, Protocol, make_protocols

pytestmark = pytest.mark.thorough

KEYS, OF_VIP, OF_STRIPE, OF_EXPORTS, PAUSED, OTHERS = 5000, 21, 60, 3, 4, 2

LIMITS = {"mail": "1/s", "stripe": "2/s", "exports": "2 at once", "sms": "1/s"}


@dataclass
class Night:
    """What waits, and when each task was parked and has started (us)."""

    lines: Protocol
    parked: dict[str, int] = field(default_factory=dict)
    started: dict[str, int] = field(default_factory=dict)

    def park(self, task: str, name: str, key: object = None) -> None:
        limit = name if key is None else (name, key)
        self.lines.park(task, [limit], may_run=False)
        self.parked[task] = self.lines.now

    def status(self, name: str, key: object = None) -> LimitDetails:
        return self.lines.limiter[(name, key) if key is not None else name].status()

    def preview_pause(self, name: str, seconds: float) -> Preview:
        limiter = self.lines.limiter
        return limiter.run_plan(preview_pause(limiter.observer, limiter[name].ref, seconds))

    def run(self, prefix: str) -> None:
        """Let a worker claim, until all tasks with ids of a prefix have started."""
        lines, settled = self.lines, list[int]()
        wanted = {task for task in self.parked if task.startswith(prefix)}
        while wanted - self.started.keys():
            claims = lines.claim(room=500, settled=settled)
            settled = [claim.token for claim in claims]
            self.started |= {claim.id: lines.now + claim.starts for claim in claims}
            lines.now += 0 if claims else max(1, lines.ask)
        lines.claim(room=0, settled=settled)

    def last_start(self, prefix: str) -> int:
        return max(at for task, at in self.started.items() if task.startswith(prefix))


@pytest.fixture
def night(redis_url: str) -> Iterator[Night]:
    for make in make_protocols(redis_url):
        night = Night(make(LIMITS))
        lines = night.lines
        for number in range(KEYS):
            night.park(f"mail-{number}", "mail", number)
        for number in range(OF_VIP):
            night.park(f"vip-{number}", "mail", "vip")
        for number in range(2):
            lines.park(f"busy-{number}", ["exports"], holder=f"worker {number} busy-{number}")
        for number in range(OF_EXPORTS):
            night.park(f"export-{number}", "exports")
        lines.limiter["sms", "paused"].pause(None, by="ann")
        for number in range(PAUSED):
            night.park(f"paused-{number}", "sms", "paused")
        for number in range(OTHERS):
            night.park(f"sms-{number}", "sms", "other")
        for number in range(OF_STRIPE):
            night.park(f"stripe-{number}", "stripe")
        yield night


def test_what_waits_is_counted_exactly(night: Night) -> None:
    mail, sms = night.status("mail"), night.status("sms")
    assert (mail.waiting, mail.waiting_keys) == (KEYS + OF_VIP, KEYS + 1)
    assert mail.top_keys[0] == ("vip", OF_VIP)
    assert [(one.name, one.waiting, one.is_exact) for one in mail.queues] == [
        ("q", KEYS + OF_VIP, True)
    ]
    assert (sms.waiting, sms.paused_keys) == (PAUSED + OTHERS, 1)
    assert (sms.top_paused_keys, sms.pauses) == ((("paused", None),), ())
    assert night.status("sms", "paused").waiting == PAUSED
    exports = night.status("exports")
    assert (exports.waiting, exports.slots_used) == (OF_EXPORTS, 2)
    assert {one.task_id for one in exports.slots} == {"busy-0", "busy-1"}


def test_without_a_worker_nothing_has_an_end(night: Night) -> None:
    for name in ("mail", "stripe", "sms"):
        found = night.status(name).forecast
        assert found is not None
        assert (found.seconds, found.at, found.cause) == (None, None, "workers")
    why = night.lines.limiter.explain(f"stripe-{OF_STRIPE - 1}").forecast
    assert why is not None
    assert (why.seconds, why.cause) == (None, "workers")
    preview = night.preview_pause("stripe", 100)
    assert (preview.before.cause, preview.after.cause) == ("workers", "workers")


def test_ends_are_those_of_the_tasks_that_run(night: Night) -> None:
    lines, limiter = night.lines, night.lines.limiter
    lines.add_worker()
    began, found = lines.now, {name: night.status(name).forecast for name in LIMITS}
    why = limiter.explain(f"stripe-{OF_STRIPE - 1}").forecast
    exact = limiter["stripe"].forecast()
    listed = limiter["stripe"].list_waiting(most=100).tasks
    assert len(listed) == OF_STRIPE
    assert {task.starts_in for task in listed} == {None}
    for prefix in ("stripe", "mail", "vip", "sms"):
        night.run(prefix)
    assert not any(task.startswith(("paused", "export")) for task in night.started)
    # More than 2,000 lines wait, so what is known is the least, by the rate; here it is exact.
    last = (night.last_start("stripe") - began) / SECOND
    for one in (found["stripe"], why):
        assert one is not None
        assert one.cause == "lines"
        assert one.earliest is not None
        assert (one.earliest.timestamp() - began / SECOND) == pytest.approx(last, abs=0.01)
    assert exact.seconds == pytest.approx(last, abs=0.01)
    for task in listed:
        started = (night.started[task.task_id] - began) / SECOND
        assert task.not_before == pytest.approx(started, abs=0.01)


def test_what_is_paused_or_needs_a_slot_has_a_reason_and_a_least_time(night: Night) -> None:
    lines, limiter = night.lines, night.lines.limiter
    lines.add_worker()
    began, sms = lines.now, limiter["sms"].forecast()
    exports = limiter["exports"].forecast()
    assert (exports.seconds, exports.cause, exports.unknown) == (None, "slots", OF_EXPORTS)
    assert (sms.seconds, sms.cause, sms.unknown) == (None, "pause", PAUSED)
    night.run("sms")
    assert sms.earliest is not None
    assert sms.earliest.timestamp() == pytest.approx(night.last_start("sms") / SECOND, abs=0.01)
    assert night.last_start("sms") - began == (OTHERS - 1) * SECOND
    resume = limiter.run_plan(preview_resume(limiter.observer, limiter["sms", "paused"].ref))
    assert (resume.before.cause, resume.waiting) == ("pause", PAUSED)
    limiter["sms", "paused"].resume()
    night.run("paused")
    assert resume.after.at is None or resume.after.at.timestamp() == pytest.approx(
        night.last_start("paused") / SECOND, abs=0.01
    )


def test_the_preview_of_a_pause_comes_true(night: Night) -> None:
    lines = night.lines
    lines.add_worker()
    preview = night.preview_pause("stripe", 100)
    before, after = preview.before.earliest, preview.after.earliest
    assert preview.waiting == OF_STRIPE
    assert before is not None
    assert after is not None
    lines.limiter["stripe"].pause(100)
    night.run("stripe")
    assert after.timestamp() == pytest.approx(night.last_start("stripe") / SECOND, abs=0.01)
    assert (after - before).total_seconds() == pytest.approx(100, abs=1)


def test_a_young_limit_is_judged_by_its_own_time(night: Night) -> None:
    """Its counts, waits and use are those of its tasks, from its first second on."""
    lines, limiter = night.lines, night.lines.limiter
    lines.add_worker()
    assert limiter["mail"].report(86_400).top_keys[0] == ("vip", OF_VIP)
    began = lines.now
    lines.now += 1
    limiter.run_plan(record_totals(limiter.observer))
    night.run("stripe")
    lines.now += 1
    limiter.run_plan(record_totals(limiter.observer))
    report = limiter["stripe"].report(86_400)
    waits = sorted(
        (at - night.parked[task]) / SECOND
        for task, at in night.started.items()
        if task.startswith("stripe")
    )
    for share in (0.5, 0.95):
        bounds = report.totals.wait_quantile(share)
        assert bounds is not None
        assert bounds[0] <= waits[ceil(share * len(waits)) - 1] <= bounds[1]
    assert report.totals.granted == report.totals.claimed == OF_STRIPE
    seconds = (lines.now - began) / SECOND
    assert report.use == pytest.approx(OF_STRIPE / (1 + 2 * seconds), rel=0.05)


def test_the_last_429_is_that_of_the_answers(night: Night) -> None:
    limiter, times = night.lines.limiter, {}
    for key in ("7", "vip", "7"):
        night.lines.now += SECOND
        limiter["mail", key].learn(Feedback(refused=True))
        times[key] = night.lines.time(0)
    last = night.status("mail").last_api_refusal
    assert last is not None
    assert (last.key, last.at) == ("7", times["7"])
    assert night.status("stripe").last_api_refusal is None
