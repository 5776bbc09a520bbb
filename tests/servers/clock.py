"""Processes whose clock a test sets: Debian's libfaketime gives them the time."""

from __future__ import annotations

from pathlib import Path

from tests.programs import search_path
from tests.servers.server import Server
from tests.tether import Tethered

#: Processes take the time from it, and read the file with the offset anew at each look.
LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


def set_offset(file: Path, seconds: int) -> None:
    """Move the clock of the processes that read a file to so many seconds after the machine's."""
    new = file.with_suffix(".new")
    new.write_text(f"{seconds:+d}\n")
    new.replace(file)  # a process that reads half a file would have no offset


def faked(file: Path) -> dict[str, str]:
    """The environment of a process whose clock is off by what a file says."""
    return {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",
        # The clock that people set is moved; the one that only counts is not.
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_RESET": "1",
        "PYTHONPATH": search_path(Path(__file__).parent / "faked_clock"),
    }


class ServerWithClock(Server):
    """A server whose clock can be set."""

    def launch(self, *options: str) -> None:
        self._file = self.directory / "clock"
        self.set_clock(0)
        command = [*self._command, *options]
        self._running = Tethered(command, self.directory / "server.log", faked(self._file))

    def set_clock(self, seconds: int) -> None:
        """Set the clock to so many seconds after the machine's own."""
        set_offset(self._file, seconds)
