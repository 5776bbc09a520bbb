"""Model checking of the protocol: anything may happen, and a model tells what must be then."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model import tables
from tests.model.machine import Model
from tests.model.watched import Watched
from tests.protocol import Protocol
from tests.sizes import NIGHTLY, WHOLE

#: So many runs in each part, of up to so many steps.
RUNS, STEPS = (500 if WHOLE else 100), 100

#: Parts that may run side by side, each with other runs.
PARTS = 4 if NIGHTLY else 1

#: What is rare must be seen, too, or its laws are not tested.
RARE = {
    *("known", "late", "full", "crowded", "never", "dropped", "retried", "stepped back"),
    *("resumed", "drained"),
    *("given back", "set aside", "reclaimed", "revoked", "settled", "undefined"),
    *("lost at the gate", "lost parked", "lost admitted", "lost claim"),
    *("take refused", "upto refused", "reserve refused", "slot refused"),
}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_the_laws_hold_whatever_happens(redis_url: str, part: int) -> None:
    protocol, watched = Protocol(redis_url, tables.LIMITS), Watched(redis_url)
    protocol.store.close()
    protocol.store = protocol.limiter.store = watched
    seen: Counter[str] = Counter()

    # The same runs each time: who breaks a law is told so, and nobody else.
    @seed(part)
    def make() -> Model:
        return Model(protocol, watched, seen)

    run_state_machine_as_test(
        make,  # type: ignore[arg-type]  # anything that makes one will do
        settings=settings(
            max_examples=RUNS,
            stateful_step_count=STEPS,
            deadline=None,  # a run is a hundred calls, however slow the machine
            suppress_health_check=list(HealthCheck),  # as Hypothesis does for state machines
            database=None,  # a failure is found again by its seed
            print_blob=True,
        ),
    )
    protocol.close()
    assert set(seen) >= (RARE if WHOLE else set())
