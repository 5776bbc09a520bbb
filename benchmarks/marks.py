"""Marks: a time and a task's id, appended to a file. The cheapest trace of a process."""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

_MARK = struct.Struct("<d36s")


@dataclass(frozen=True, slots=True)
class Mark:
    """The time of an event of a task, in seconds since the epoch."""

    time: float
    task_id: str


def open_marks(file: Path) -> int:
    """Open a file of marks. If it is opened before a pool forks, its processes share it."""
    return os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def write(file: int, task_id: str) -> None:
    """Write a mark."""
    os.write(file, _MARK.pack(time.time(), task_id.encode()))


def count(file: Path) -> int:
    """Return the number of marks."""
    return file.stat().st_size // _MARK.size if file.exists() else 0


def read(file: Path, skip: int = 0) -> list[Mark]:
    """Return the marks in order of time, without the first ``skip`` that were written."""
    if not file.exists():
        return []
    data = file.read_bytes()
    end = len(data) // _MARK.size * _MARK.size  # the last one may be half written
    rows = _MARK.iter_unpack(data[skip * _MARK.size : end])
    marks = [Mark(at, task_id.decode()) for at, task_id in rows]
    return sorted(marks, key=lambda mark: mark.time)
