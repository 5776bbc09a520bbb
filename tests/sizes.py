"""The three sizes of the suite: `make test`, `make test-all` and `make test-nightly`.

The short one shows every law in minutes. It leaves out tests with the marker `thorough`, tests of
RabbitMQ, Redis where a test is for it and Valkey, and all pools but the first that a test is for.
The whole suite has all of these. The nightly one adds what takes minutes on its own: tests with the
marker `nightly`. The larger the suite, the more examples of each property it plays.

The examples are the same in each run, so that a change does not fail for a fault that is older.
``EXAMPLES=random`` plays others each time, to find such faults.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

NIGHTLY = os.environ.get("TESTS") == "nightly"
WHOLE = NIGHTLY or os.environ.get("TESTS") == "all"

_RABBITMQ = {"rabbitmq_url", "rabbitmq4_url", "any_rabbitmq_url", "rabbitmq"}


def examples(number: int) -> int:
    """Return how many examples of a property to play, of so many in the nightly suite."""
    if NIGHTLY:
        return number
    return max(5, number // (4 if WHOLE else 20))


# No deadline: an example takes as long as the machine is slow.
settings.register_profile("same", derandomize=True, max_examples=examples(100), deadline=None)
settings.register_profile("random", print_blob=True, max_examples=examples(100), deadline=None)
settings.load_profile("random" if os.environ.get("EXAMPLES") == "random" else "same")


def is_left_out(item: pytest.Item) -> bool:
    """Return whether a test is in a larger suite only."""
    if item.get_closest_marker("faults") is not None:  # a suite of its own
        return False
    if item.get_closest_marker("nightly") is not None:
        return not NIGHTLY
    return not WHOLE and _is_thorough(item)


def _is_thorough(item: pytest.Item) -> bool:
    names = set(getattr(item, "fixturenames", ()))
    params = item.callspec.params if hasattr(item, "callspec") else {}
    pool = params.get("pool")
    return (
        item.get_closest_marker("thorough") is not None
        or item.get_closest_marker("rabbitmq") is not None
        or bool(names & _RABBITMQ)
        or params.get("any_server_url", "valkey") != "valkey"
        or (pool is not None and pool != _first_pool(item))
    )


def _first_pool(item: pytest.Item) -> object:
    pools = item.get_closest_marker("pools")
    return pools.args[0] if pools is not None else "prefork"
