"""Counts the calls of scripts that a server gets, by the name of the script.

The server reports each command (``MONITOR``), which costs it time: what it spends meanwhile is no
figure.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import redis

from celery_throttle.store.script import script

#: A command that ends the count: the thread reads it as the last one.
_END = "end of count"


@contextmanager
def count_calls(server: redis.Redis, names: Sequence[str]) -> Iterator[Counter[str]]:
    """Count the calls of some scripts. The counts are complete at the end of the context."""
    by_sha = {script(name).sha: name for name in names}
    counts: Counter[str] = Counter()
    with server.monitor() as commands:  # type: ignore[no-untyped-call]  # redis-py has no types for it

        def count() -> None:
            for entry in commands.listen():
                command: str = entry["command"]
                if command == f"ECHO {_END}":
                    return
                kind, _, rest = command.partition(" ")
                name = by_sha.get(rest.partition(" ")[0])
                if kind.upper() == "EVALSHA" and name is not None:
                    counts[name] += 1

        thread = threading.Thread(target=count, daemon=True)
        thread.start()
        yield counts
        server.echo(_END)
        thread.join(timeout=10)
