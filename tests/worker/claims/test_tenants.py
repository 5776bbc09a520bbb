"""Tenants that share an API, and a worker."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from kombu import Connection

from celery_throttle import Limiter
from tests.apps import tenants
from tests.servers.server import wait_until
from tests.workers import StartWorker

pytestmark = pytest.mark.workers

SECONDS = 15

#: Lets the only task that waits do so many times more, as if each had been parked. Their ids are as
#: long as its own, so nothing else of what is packed changes.
MANY = """
local messages, line = KEYS[1], KEYS[2]
local id = ARGV[3]
local packed = redis.call('HGET', messages, id)
local score = tonumber(redis.call('ZSCORE', line, id))
for number = ARGV[1], ARGV[2] do
  local other = string.format('%036d', number)
  local copy = string.gsub(packed, string.gsub(id, '%-', '%%-'), other)
  redis.call('HSET', messages, other, copy)
  redis.call('ZADD', line, string.format('%.0f', score + number), other)
end
redis.call('INCRBY', KEYS[3], ARGV[2] - ARGV[1] + 1)
"""


@pytest.mark.thorough
def test_a_tenant_with_a_hundred_thousand_tasks_stands_in_nobodys_way(
    redis_url: str, start_worker: StartWorker
) -> None:
    limiter = Limiter(redis_url, tenants.LIMITS)
    limiter.register()
    limiter["api"].pause(60)
    client: Any = redis.Redis.from_url(redis_url)  # its stubs mix sync and async replies
    worker = start_worker("tests.apps.tenants", redis_url)
    messages = limiter.keys.queue("redis/0/tenants").messages

    def waits(count: int) -> bool:
        return bool(client.hlen(messages) == count)

    with Connection(redis_url) as connection:
        tenants.app.send_task(tenants.call.name, ("big",), connection=connection)
        wait_until(lambda: waits(1), "one waits", SECONDS)
        [line] = client.keys("{throttle}:line:*")
        [first] = client.hkeys(messages)
        for start in range(1, 100_001, 5_000):  # a longer script would be an outage to the worker
            names = messages, line, "{throttle}:backlog:api"
            client.eval(MANY, 3, *names, start, start + 4_999, first)
        assert client.zcard(line) == 100_001
        small = {f"small{number}" for number in range(99)}
        for name in sorted(small):
            tenants.app.send_task(tenants.call.name, (name,), connection=connection)
        wait_until(lambda: waits(100_100), "all wait", SECONDS)
    limiter["api"].reset()
    wait_until(lambda: client.llen("tenants-calls") >= 150, "they are called", SECONDS)
    called = [row.decode() for row in client.lrange("tenants-calls", 0, -1)]
    assert small < {*called[:110]}  # each of the hundred has its turn
    worker.terminate()
    worker.wait()
    client.flushall()
    client.close()
    limiter.store.close()
