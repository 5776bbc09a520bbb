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
from celery_throttle.keys import DEFAULT_PREFIX
from celery_throttle.limits import Limit

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11

_LINE = re.compile(rb"\+(\d+)\.(\d{6}) \[\d+ (\S+)\] (.*)", re.DOTALL)
_PART = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_TAT = struct.Struct("<dddd")


@dataclass(slots=True)
class Admission:
    """A unit that was taken: from when on it may be used, and by which task if that is known."""

    slot: float
    task_id: str | None = None


class Monitor:
    """Listens to all commands of a server while it is a context."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._heard: list[bytes] = []

    def __enter__(self) -> Self:
        server = urlsplit(self._url)
        self._socket = socket.create_connection((server.hostname, server.port))
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

    def admissions(self, limits: Mapping[str, Limit]) -> dict[str, list[Admission]]:
        """All units taken, in the order of their slots, by field: limit, or ``limit:key``.

        Args:
            limits: name to limit; each must be GCRA, and each task cost 1.
        """
        found: dict[str, list[Admission]] = {}
        tats: dict[str, float] = {}
        last: Admission | None = None
        for now, command, key, rest in self._commands():
            if command == b"EVALSHA":
                began, last = now, None
            elif command == b"ZREM" and last is not None:
                last.task_id, last = _text(rest[0]).decode(), None
            elif command == b"SET":
                limit = limits[key.partition(":")[0]]
                tat, ticks, p, q = _TAT.unpack(_text(rest[0]))
                interval = p / q
                tat += ticks / q
                units = round((tat - max(tats.get(key, 0.0), began)) / interval)
                tats[key] = tat
                for left in reversed(range(units)):
                    slot = max(began, tat - (left + limit.burst) * interval)
                    last = Admission(slot / 1e6)
                    found.setdefault(key, []).append(last)
        return found

    def _commands(self) -> Iterator[tuple[float, bytes, str, list[bytes]]]:
        """Every script's beginning, every state it sets, and every task it takes from a line."""
        states, lines = f"{DEFAULT_PREFIX}:state:", f"{DEFAULT_PREFIX}:line:"
        for line in b"".join(self._heard).split(b"\r\n"):
            match = _LINE.fullmatch(line)
            if match is None:
                continue
            seconds, micros, origin, text = match.groups()
            now = float(int(seconds) * 1_000_000 + int(micros))
            if text.startswith(b'"EVALSHA"'):
                yield now, b"EVALSHA", "", []
            elif origin == b"lua" and text.startswith((b'"SET"', b'"ZREM"')):
                command, name, *rest = _PART.findall(text)
                key = _text(name).decode()
                if command == b"SET" and key.startswith(states):
                    yield now, command, key.removeprefix(states), rest
                elif command == b"ZREM" and key.startswith(lines):
                    yield now, command, key, rest


def _text(escaped: bytes) -> bytes:
    """What the server wrote with escapes as it does in strings, which are those of Python too."""
    text: bytes = ast.literal_eval(f'b"{escaped.decode("ascii")}"')
    return text
