"""A Redis whose clock a test sets: Debian's libfaketime gives it the time."""

from __future__ import annotations

from pathlib import Path

from tests.servers.server import Server
from tests.tether import Tethered

#: Processes take the time from it, and read the file with the offset anew at each look.
LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


def faked(file: Path) -> dict[str, str]:
    """The environment of a process whose clock is off by what a file says."""
    return {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",
        # The clock that people set is moved; the one that only counts is not.
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_RESET": "1",
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
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self._file)  # a server that reads half a file would have no offset
