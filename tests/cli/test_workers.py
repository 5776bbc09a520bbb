"""The command ``workers``."""

from __future__ import annotations

import time
from datetime import datetime, timezone

import redis

from celery_throttle.cli.shared.text import clock, zone
from tests.cli.conftest import Shell


def test_live_and_lost_workers_are_listed_with_their_claims(shell: Shell) -> None:
    assert shell.run("workers") == "0 live workers, 0 lost workers\n"
    throttle, now = shell.app.throttle, int(time.time() * 1_000_000)
    ends = {"w1@a:1:x": now + 60_000_000, "w2@a:2:x": now - 60_000_000}
    with redis.Redis.from_url(throttle.settings.url) as client:
        client.zadd(throttle.keys.membership, ends)
        client.zadd(throttle.keys.workers, {"w3@a:3:x": now + 9_000_000})
        client.hset(throttle.keys.claims("w3@a:3:x"), "token", "a claim")
        for key in (
            throttle.keys.membership,
            throttle.keys.workers,
            throttle.keys.claims("w3@a:3:x"),
        ):
            client.expire(key, 60)
    since = datetime.fromtimestamp(now / 1_000_000 - 60, timezone.utc)
    head, *rows, _, summary = shell.run("workers").splitlines()
    assert head.split() == ["worker", "state", "claims", "return", "in"]
    assert rows[0].split() == ["w1@a:1:x", "live", "0", "-"]
    assert rows[1].split() == ["w2@a:2:x", "lost", "since", clock(since), zone(), "0", "-"]
    assert rows[2].split()[:3] == ["w3@a:3:x", "lost", "1"]
    assert summary == "1 live worker, 2 lost workers"
    found = {one["name"]: one for one in shell.json("workers")["workers"]}
    assert (found["w1@a:1:x"]["live"], found["w2@a:2:x"]["live"]) == (True, False)
    assert found["w3@a:3:x"]["claims"] == 1
