"""What a server admitted, read from its ``MONITOR``: neither a worker's clock nor its word counts.

``MONITOR`` shows every command of every script. A state of GCRA that a script sets holds the
theoretical arrival time (TAT) and the emission interval, so it tells how many units were taken
since the state before, and from when on each may be used: its slot is ``TAT - burst * interval``,
or the time of the decision if that is later. A claim takes the task out of its line right after it
took the unit, which tells whose unit it is.
"""

from __future__ import annotations

import ast
import re
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from benchmarks.stage import wait_until
from celery_throttle.limits.limit import Limit
from celery_throttle.store.keys import DEFAULT_PREFIX

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11

_LINE = re.compile(rb"\+(\d+)\.(\d{6}) \[\d+ (\S+)\] (.*)", re.DOTALL)
_PART = re.compile(rb'"((?:[^"\\]|\\.)*)"')
#: What `meters.lua` packs, behind when the definition began: tag, size, time, the interval as p
#: and q, since when something is in use, TAT, ticks.
_GCRA = struct.Struct("<dBHdddddd")


@dataclass(slots=True)
class Admission:
    """A unit that was taken: from when on it may be used, and by which task if that is known."""

    slot: float
    task_id: str | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """One command that a server carried out: when (us), whether for a script, and its parts."""

    at: float
    by_script: bool
    parts: list[bytes]


class Monitor:
    """Listens to all commands of a server while it is a context."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._heard: list[bytes] = []

    def __enter__(self) -> Self:
        server = urlsplit(self._url)
        self._socket = socket.create_connection((server.hostname, server.port or 6379))
        self._socket.sendall(b"MONITOR\r\n")
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        wait_until(lambda: bool(self._heard), "the server to be monitored")
        return self

    def _listen(self) -> None:
        while data := self._socket.recv(1 << 20):
            self._heard.append(data)

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def commands(self, *names: bytes) -> Iterator[Command]:
        """What was heard of the commands of these names."""
        for line in b"".join(self._heard).split(b"\r\n"):
            match = _LINE.fullmatch(line)
            if match is None:
                continue
            seconds, micros, origin, text = match.groups()
            if text[1 : text.index(b'"', 1)] in names:
                parts = [_read(part) for part in _PART.findall(text)]
                at = int(seconds) * 1_000_000 + int(micros)
                yield Command(float(at), origin == b"lua", parts)


def _read(escaped: bytes) -> bytes:
    """A part as it was: the server escapes as Python does."""
    text: bytes = ast.literal_eval(f'b"{escaped.decode("ascii")}"')
    return text


def admissions(monitor: Monitor, limits: Mapping[str, Limit]) -> dict[str, list[Admission]]:
    """All units taken, in the order of their slots, by field: limit, or ``limit:key``.

    Args:
        monitor: what listened to the limits' server.
        limits: name to limit; each must be GCRA, and each task cost 1.
    """
    found: dict[str, list[Admission]] = {}
    tats: dict[str, float] = {}
    now = 0.0
    last: Admission | None = None
    states, lines = f"{DEFAULT_PREFIX}:state:".encode(), f"{DEFAULT_PREFIX}:line:".encode()
    for command in monitor.commands(b"EVALSHA", b"SET", b"ZREM"):
        key = command.parts[1]
        if not command.by_script:
            now, last = command.at, None
        elif key.startswith(states):
            name = key.removeprefix(states).decode()
            limit = limits[name.partition(":")[0]]
            *_, p, q, _, tat, ticks = _GCRA.unpack_from(command.parts[2])
            interval = p / q
            tat += ticks / q
            units = round((tat - max(tats.get(name, 0.0), now)) / interval)
            tats[name] = tat
            for left in reversed(range(units)):
                slot = max(now, tat - (left + limit.burst) * interval)
                last = Admission(slot / 1e6)
                found.setdefault(name, []).append(last)
        elif key.startswith(lines) and last is not None:
            last.task_id, last = command.parts[2].decode(), None
    return found
