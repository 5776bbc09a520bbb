"""What earlier versions left on a server, as it was recorded; see ``tests/vectors/``."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis

#: Of the app of `tests/apps/apart.py`: tasks ``call`` with the numbers 0 to 19, and 20 to 24 as the
#: fan-out ``nightly``. Two of them are claims of a worker that was killed. Names tell no brokers.
WITHOUT_BROKER = Path(__file__).parent / "vectors" / "lines-without-broker.json"

#: Of the app of ``tests/recorded/app.py``; ``tests/recorded/record.py`` says what it is.
BEFORE_PACKAGES = Path(__file__).parent / "vectors" / "before-packages.json"

#: Added to each recorded expiry, so that no key expires during a test.
HOUR_MS = 3_600_000


def restore(client: redis.Redis, recorded: Path) -> None:
    """Writes all keys of a file that has nothing else."""
    restore_keys(client, json.loads(recorded.read_text()))


def restore_keys(client: redis.Redis, keys: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes keys: of each its type, its value in base64, and what was left until it expired."""
    for name, about in keys.items():
        value = about["value"]
        if about["type"] == "string":
            client.set(name, b64decode(value))
        elif about["type"] == "hash":
            for field, packed in value.items():
                client.hset(name, b64decode(field), b64decode(packed))
        elif about["type"] == "zset":
            client.zadd(name, {b64decode(member): score for member, score in value.items()})
        elif about["type"] == "list":
            client.rpush(name, *map(b64decode, value))
        else:
            client.sadd(name, *map(b64decode, value))
        if "expires_ms" in about:
            client.pexpire(name, about["expires_ms"] + HOUR_MS)
