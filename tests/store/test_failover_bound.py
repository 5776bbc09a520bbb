"""What a failover grants twice: the units that the new master does not know of, and no more.

The replica stands still for the replication lag, and is the new master after it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pytest

from celery_throttle import Limiter
from celery_throttle.testing import ManualClock
from tests.servers.server import Server, replicate, valkey_command

pytestmark = pytest.mark.thorough

RATE, BURST = 20, 5
STEP = 0.01  # seconds

Grants = list[tuple[float, float]]  #: (time, units)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """A master and its replica."""
    both = []
    for name in ("master", "replica"):
        (tmp_path / name).mkdir()
        both.append(Server(valkey_command(), tmp_path / name))
    yield both[0], both[1]
    for server in both:
        server.stop()


class Client:
    """Takes units of limits, most of the time as many as there are, of one limit or of all."""

    def __init__(self, dice: random.Random, *limits: str) -> None:
        self.clock = ManualClock(1_000_000_000_000)
        self._limits = {f"limit-{number}": limit for number, limit in enumerate(limits)}
        self.grants: dict[str, Grants] = {name: [] for name in self._limits}
        self._dice = dice
        self._began = self.clock.now

    def take(self, server: Server, seconds: float) -> dict[str, float]:
        """Take units for some time. Returns how many of each limit."""
        limiter = Limiter(server.url, self._limits, clock=self.clock, timeout=60)
        counts = dict.fromkeys(self._limits, 0.0)
        for _ in range(round(seconds / STEP)):
            self.clock.advance(STEP)
            if self._dice.random() < 0.5:
                names = self._dice.choice([[name] for name in counts] + [[*counts]])
                granted = limiter.acquire_up_to(names, BURST).granted
                for name in names:
                    self.grants[name].append(((self.clock.now - self._began) / 1e6, granted))
                    counts[name] += granted
        limiter.store.close()
        return counts

    def most(self, name: str, allowance: float, rate: float, longest: float) -> float:
        """The most that any window up to a length takes of a limit beyond its allowance."""
        times = [time for time, _ in self.grants[name]]
        sums = [0, *accumulate(units for _, units in self.grants[name])]
        return max(
            sums[last + 1] - sums[first] - allowance - rate * (times[last] - times[first])
            for first in range(len(times))
            for last in range(first, len(times))
            if times[last] - times[first] < longest - 1e-9  # they are rounded
        )


def fail_over(servers: tuple[Server, Server], client: Client, lag: float) -> dict[str, float]:
    """Take units around a failover with a replication lag. Returns those taken in the lag."""
    master, replica = servers
    with master.client() as client_of_master, replica.client() as client_of_replica:
        client_of_master.flushall()
        client_of_replica.replicaof("127.0.0.1", str(master.port))
        client.take(master, client._dice.choice([STEP, 0.5, 1.5]))
        replicate(master, replica)
        client_of_replica.replicaof("NO", "ONE")
        unknown = client.take(master, lag)
        client.take(replica, 1.5)
    return unknown


@pytest.mark.parametrize("lag", [0.0, 0.1, 0.5, 2.0])
def test_a_rate(servers: tuple[Server, Server], lag: float) -> None:
    client = Client(random.Random(lag), f"{RATE}/s burst {BURST}")
    [(name, unknown)] = fail_over(servers, client, lag).items()
    extra = client.most(name, BURST, RATE, longest=float("inf"))
    assert extra <= min(unknown, BURST + RATE * lag) + 1e-6
    assert (extra > 1e-6) == (lag > 0)  # the replica did stand still


@pytest.mark.parametrize("lag", [0.0, 0.1, 0.5, 2.0])
def test_each_limit_of_a_call(servers: tuple[Server, Server], lag: float) -> None:
    rates = [(20, 5), (7, 3), (50, 1)]
    client = Client(random.Random(lag), *(f"{rate}/s burst {burst}" for rate, burst in rates))
    unknown = fail_over(servers, client, lag)
    for (name, count), (rate, burst) in zip(unknown.items(), rates, strict=True):
        extra = client.most(name, burst, rate, longest=float("inf"))
        assert extra <= min(count, burst + rate * lag) + 1e-6


@pytest.mark.parametrize("lag", [0.0, 0.1, 0.5, 2.0])
def test_a_log(servers: tuple[Server, Server], lag: float) -> None:
    client = Client(random.Random(lag), f"{RATE}/s using sliding-log")
    [(name, unknown)] = fail_over(servers, client, lag).items()
    extra = client.most(name, RATE, 0, longest=1.0)
    assert extra <= min(unknown, RATE)
    assert extra >= 0  # the limit is used up
