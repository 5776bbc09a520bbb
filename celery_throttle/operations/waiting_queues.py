"""Plans that find the queues whose tasks wait in lines.

Queues are found by the limits, as each line waits at one of them, or for its paused fan-out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from celery_throttle.operations.plan import Plan
from celery_throttle.store.keys import FAN_OUT_NAME, Keys
from celery_throttle.store.script import Argument, Call, script

#: The cursor that ends a scan.
END = b"0"


def limit_names(keys: Keys, now: Argument = "") -> Plan[tuple[int, list[str]]]:
    """Return the server's time in microseconds, and the names of all limits that it knows."""
    names: dict[str, None] = {}
    first_time, cursor = 0, b""
    while cursor != END:
        call = Call(script("list_names"), [keys.names], [now, cursor or "0"])
        server_time, cursor, found = yield call
        first_time = first_time or int(server_time)
        names.update((name.decode(), None) for name in found)
    return first_time, list(names)


def waiting_queues(
    keys: Keys, names: Iterable[str], most_lists: int = sys.maxsize
) -> Plan[tuple[list[str], bool]]:
    """Return the queues, each with its broker, of tasks that wait at limits of these names.

    And of tasks of paused fan-outs. Also returns whether these are all: the search stops after more
    than ``most_lists`` waiting lists, each of which has one or more lines.
    """
    queues: dict[str, None] = {}
    head, lists = keys.queue("").due, 0
    for name in (*names, FAN_OUT_NAME):
        cursor = b""
        while cursor != END and lists <= most_lists:
            call = Call(script("list_queues"), [keys.waiting_list_index(name)], [cursor or "0"])
            cursor, found, seen = yield call
            lists += seen
            queues.update((due.decode().removeprefix(head), None) for due in found)
    return list(queues), lists <= most_lists


def quarantined_queues(keys: Keys) -> Plan[list[str]]:
    """Return the queues, each with its broker, of tasks that are in quarantine."""
    queues: dict[str, None] = {}
    head, cursor = keys.queue("").lines, b""
    while cursor != END:
        call = Call(script("list_quarantined"), [keys.quarantine], [cursor or "0"])
        cursor, rows = yield call
        queues.update((lines.decode().removeprefix(head), None) for _, _, lines in rows)
    return list(queues)
