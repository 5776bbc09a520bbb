"""Reads the admissions of a server from its ``MONITOR``, independent of workers and their clocks.

``MONITOR`` shows every command of every script. A state of GCRA that a script sets holds the
theoretical arrival time (TAT) and the emission interval, so it shows how many units were acquired
since the previous state, and when each may start: at ``TAT - burst * interval``, or at the time of
the decision if that is later. A claim removes the task from its line right after it acquired the
unit, which shows the task of each unit.
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
#: The state that `meters.lua` packs: begin of the definition, tag, size, time, the interval as p
#: and q, since when a unit is in use, TAT, ticks.
_GCRA = struct.Struct("<dBHdddddd")


@dataclass(slots=True)
class Admission:
    """An acquired unit: the time from which it may start (s), and its task if that is known."""

    slot: float
    task_id: str | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a server: when (us), whether a script called it, and its parts."""

    at: float
    by_script: bool
    parts: list[bytes]


class Monitor:
    """Context: records all commands of a server."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._received: list[bytes] = []

    def __enter__(self) -> Self:
        server = urlsplit(self._url)
        self._socket = socket.create_connection((server.hostname, server.port or 6379))
        self._socket.sendall(b"MONITOR\r\n")
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        wait_until(lambda: bool(self._received), "the server to be monitored")
        return self

    def _listen(self) -> None:
        while data := self._socket.recv(1 << 20):
            self._received.append(data)

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def commands(self, *names: bytes) -> Iterator[Command]:
        """Yield the recorded commands of these names."""
        for line in b"".join(self._received).split(b"\r\n"):
            match = _LINE.fullmatch(line)
            if match is None:
                continue
            seconds, micros, origin, text = match.groups()
            if text[1 : text.index(b'"', 1)] in names:
                parts = [_read(part) for part in _PART.findall(text)]
                at = int(seconds) * 1_000_000 + int(micros)
                yield Command(float(at), origin == b"lua", parts)


def _read(escaped: bytes) -> bytes:
    """Return the unescaped part. The server escapes as Python does."""
    text: bytes = ast.literal_eval(f'b"{escaped.decode("ascii")}"')
    return text


def admissions(monitor: Monitor, limits: Mapping[str, Limit]) -> dict[str, list[Admission]]:
    """Return all acquired units, in the order of their starts, by ``limit`` or ``limit:key``.

    Args:
        monitor: the monitor of the limits' server.
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
