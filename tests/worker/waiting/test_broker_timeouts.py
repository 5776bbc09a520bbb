"""A task that waits longer than the broker waits for acknowledgements is not delivered again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from amqp.exceptions import AMQPError
from kombu import Connection

from celery_throttle import Limiter
from tests.faults.bench import Bench
from tests.servers.rabbitmq import RabbitMQ, rabbitmq_command

pytestmark = pytest.mark.workers

SECONDS = 3.0


def wait_it_out(bench: Bench, store: str) -> None:
    """Let ten tasks wait three times as long; each runs once."""
    limiter = Limiter(store, {"api": "100/s"})
    limiter.register()
    limiter["api"].pause(3 * SECONDS)
    bench.start_workers(2)
    bench.send("late", range(10))
    bench.until_started("late", 10)
    time.sleep(SECONDS / 2)  # for a second delivery to show
    assert Counter(row["number"] for row in bench.starts("late")) == Counter(range(10))


@pytest.mark.thorough
def test_visibility_timeout(redis_url: str) -> None:
    conf = {"broker_transport_options": {"visibility_timeout": SECONDS}}
    with Bench(redis_url, redis_url, conf=conf) as bench:
        wait_it_out(bench, redis_url)


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[RabbitMQ]:
    command = rabbitmq_command()
    if command is None:
        pytest.skip("rabbitmq-server is not installed")
    rabbit = RabbitMQ(
        command,
        tmp_path,
        consumer_timeout=round(SECONDS * 1000),
        channel_tick_interval=500,
    )
    yield rabbit
    rabbit.close()


@pytest.mark.thorough
@pytest.mark.rabbitmq
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_consumer_timeout(redis_url: str, impatient: RabbitMQ, kind: str) -> None:
    bench = Bench(impatient.url, redis_url, records=redis_url, queue_type=kind)
    with bench:
        assert gives_up(impatient)
        wait_it_out(bench, redis_url)


def gives_up(rabbit: RabbitMQ) -> bool:
    """Whether it closes a channel on which a message is not acknowledged: it does so in earnest."""
    with Connection(rabbit.url) as connection, connection.SimpleQueue("unacknowledged") as queue:
        queue.put("message")
        queue.get(timeout=SECONDS)
        try:
            for _ in range(20):
                with suppress(TimeoutError):
                    connection.drain_events(timeout=1.0)
        except AMQPError:
            return True
    return False
