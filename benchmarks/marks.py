"""Marks: a time and a task's id, appended to a file. The cheapest trace a process can leave."""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

_MARK = struct.Struct("<d36s")


@dataclass(frozen=True, slots=True)
class Mark:
    """When something happened to a task; seconds since the epoch."""

    time: float
    task_id: str


def open_marks(file: Path) -> int:
    """Open a file of marks. Opened before a pool forks, it is shared by its processes."""
    return os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def leave(file: int, task_id: str) -> None:
    """Leave a mark."""
    os.write(file, _MARK.pack(time.time(), task_id.encode()))


def count(file: Path) -> int:
    """How many marks there are."""
    return file.stat().st_size // _MARK.size if file.exists() else 0


def read(file: Path, skip: int = 0) -> list[Mark]:
    """The marks in order of time, but for the first ones written."""
    if not file.exists():
        return []
    data = file.read_bytes()[skip * _MARK.size :]
    marks = [Mark(at, task_id.decode()) for at, task_id in _MARK.iter_unpack(data)]
    return sorted(marks, key=lambda mark: mark.time)
