"""A pytest plugin: no process is started, and no connection to a server is opened."""

from __future__ import annotations

import socket
import subprocess
from typing import Any, NoReturn


def _refuse(*args: Any, **_options: Any) -> NoReturn:
    raise AssertionError(f"nothing may be started or connected to here: {args!r}")


def pytest_configure() -> None:
    for holder, name in ((socket.socket, "connect"), (subprocess, "Popen")):
        setattr(holder, name, _refuse)
