"""Run these with ``pytest examples/testing``; ``-o throttle_off=true`` needs no server at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from celery.contrib.testing.worker import start_worker

from celery_throttle import Throttled
from celery_throttle.testing import ManualClock, TaskRuns
from examples.testing.shop import app, calls, charge, remind, report, throttle


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


@pytest.fixture
def worker(throttle_server: str) -> Iterator[None]:
    """Run a worker in a thread; its broker is the server of the limits."""
    app.conf.update(broker_url=throttle_server)
    with start_worker(app, pool="solo", perform_ping_check=False):
        yield


# Limits are in the way: switch them off.


@pytest.mark.throttle_off
def test_a_charge() -> None:
    assert [charge.apply((number,)).get() for number in range(200)][-1] == "charged 199"


@pytest.mark.throttle_off
def test_many_reminders() -> None:
    assert remind(["ada"] * 50) == 50


# Limits are what is tested: move the time by hand.


def test_a_customer_gets_two_mails_a_second(throttle_clock: ManualClock) -> None:
    remind(["ada"] * 5)
    assert throttle_clock.now == 2_000_000  # microseconds: it waited for two seconds


def test_other_customers_do_not_wait(throttle_clock: ManualClock) -> None:
    remind(["ada", "bob", "cleo"])
    assert throttle_clock.now == 0


def test_the_hundred_and_first_charge_has_to_wait(throttle_clock: ManualClock) -> None:
    throttle["stripe"].try_acquire()
    refused = throttle["stripe"].try_acquire()
    assert refused.retry_after == 0.6
    throttle_clock.advance(0.6)
    assert throttle["stripe"].try_acquire()


def test_one_report_at_a_time(throttle_clock: ManualClock) -> None:
    with throttle["reports"].slot(), pytest.raises(Throttled):
        report()


def test_a_shop_that_may_not_write(throttle_limits: Callable[..., None]) -> None:
    throttle_limits(mail="1/h")
    assert remind(["ada"]) == 1
    with pytest.raises(Throttled, match="'mail'"):
        remind(["ada"])


# A worker, and everything between it and the limit.


@pytest.mark.usefixtures("worker")
def test_a_worker_charges_whatever_the_limits_are() -> None:
    results = [charge.delay(number) for number in range(2)]
    assert [result.get(timeout=30) for result in results] == ["charged 0", "charged 1"]


@pytest.mark.usefixtures("worker")
def test_a_worker_charges_in_time(
    throttle_limits: Callable[..., None], throttle_runs: TaskRuns
) -> None:
    throttle_limits(stripe="20/s")
    for number in range(5):
        charge.delay(number)
    throttle_runs.wait_for_starts(5)
    throttle_runs.assert_throttled("examples.testing.shop.charge")
    throttle_runs.assert_most_starts(3, seconds=0.1)
    assert sorted(calls) == [("stripe", number) for number in range(5)]
