"""What earlier versions left on a server, as it was recorded; see ``tests/vectors/``."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import redis

#: Of the app of `tests/apps/apart.py`: tasks ``call`` with the numbers 0 to 19, and 20 to 24 as the
#: fan-out ``nightly``. Two of them are claims of a worker that was killed. Names tell no brokers.
WITHOUT_BROKER = Path(__file__).parent / "vectors" / "lines-without-broker.json"


def restore(client: redis.Redis, recorded: Path) -> None:
    """Writes all of it."""
    keys: dict[str, dict[str, Any]] = json.loads(recorded.read_text())
    for name, about in keys.items():
        value = about["value"]
        if about["type"] == "string":
            client.set(name, b64decode(value))
        elif about["type"] == "hash":
            for field, packed in value.items():
                client.hset(name, b64decode(field), b64decode(packed))
        elif about["type"] == "zset":
            client.zadd(name, {b64decode(member): score for member, score in value.items()})
        else:
            client.sadd(name, *map(b64decode, value))
