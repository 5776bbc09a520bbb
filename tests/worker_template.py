"""A process that has imported what each worker imports, and becomes workers by forking.

A worker spends most of its start on these imports. Its fork has them, becomes a child of this
process, and runs `celery worker` as ``python -m celery`` does: only the app is imported anew.

``python -m tests.worker_template <pid of the tests> <socket>`` is the template.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

from celery_throttle.testing.tether import PR_SET_PDEATHSIG
from tests.programs import ROOT, search_path
from tests.tether import Child, start

PR_SET_CHILD_SUBREAPER = 36

#: What workers of most apps import, besides what `celery worker` imports.
MODULES = (
    "celery.app.trace",
    "celery.apps.worker",
    "celery.backends.redis",
    "celery.bin.celery",
    "celery.concurrency.prefork",
    "celery.concurrency.solo",
    "celery.concurrency.thread",
    "celery.fixups.django",
    "celery_throttle",
    "celery_throttle.cli.celery_entry",
    "celery_throttle.worker",
    "kombu.transport.pyamqp",
    "kombu.transport.redis",
)

#: These pools patch the standard library before anything is imported.
PATCHING = {"gevent", "eventlet"}

#: Variables that Python, the loader or these modules read at import.
READ_EARLY = ("PYTHON", "LD_", "OTEL_", "CELERY_CUSTOM_")

#: What each worker of the tests has of these.
WORKER_ENV = {"PYTHONPATH": search_path(), "PYTHONUNBUFFERED": "1"}


def _early(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(READ_EARLY)}


class Forked:
    """A forked worker, with the part of `subprocess.Popen` that the tests use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (timeout or float("inf"))
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("celery", timeout or 0.0)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class Template:
    """The process, as the tests see it."""

    def __init__(self) -> None:
        # Workers become children of this process when the one that forked them ends.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._socket, other = socket.socketpair()
        command = [sys.executable, "-m", "tests.worker_template", str(os.getpid())]
        self._process = subprocess.Popen(
            [*command, str(other.fileno())],
            env={**os.environ, **WORKER_ENV},
            cwd=ROOT,
            pass_fds=[other.fileno()],
            start_new_session=True,
        )
        other.close()

    def fork(
        self, command: Sequence[str | Path], log: Path, env: Mapping[str, str], cwd: Path
    ) -> Forked:
        """Start `celery`, with its output in a file."""
        order = json.dumps([[*map(str, command[3:])], dict(env), str(cwd)]).encode()
        with log.open("ab") as output:
            size = len(order).to_bytes(4, "big")
            socket.send_fds(self._socket, [size], [output.fileno()])
        self._socket.sendall(order)
        return Forked(int.from_bytes(_read(self._socket, 4), "big"))


template = cache(Template)  #: The one of this process.


def start_worker(
    command: Sequence[str | Path], log: Path, env: Mapping[str, str], cwd: Path
) -> Child:
    """Start ``python -m celery ...`` as a fork where that is the same, else as its own process."""
    own = command[0] != sys.executable or sys.platform != "linux" or PATCHING & {*command}
    if own or _early(env) != _early({**os.environ, **WORKER_ENV}):
        return start(command, log, env, cwd)
    return template().fork(command, log, env, cwd)


def _read(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = sock.recv(size - len(found))
        if not more:
            raise EOFError("the template has ended")
        found += more
    return found


def serve(tests: int, sock: socket.socket) -> None:
    """Fork a worker for each order, until the tests end."""
    for name in MODULES:
        import_module(name)
    gc.collect()
    gc.freeze()
    while True:
        size, fds, _, _ = socket.recv_fds(sock, 4, 1)
        if not size:
            return
        order = _read(sock, int.from_bytes(size, "big"))
        read, write = os.pipe()
        between = os.fork()
        if not between:
            # The worker is a child of this one, which ends at once: then it is one of the tests'.
            between = os.getpid()
            if os.fork():
                os._exit(0)
            sock.close()
            os.close(read)
            become_child(between, tests)
            os.write(write, os.getpid().to_bytes(4, "big"))
            os.close(write)
            become_worker(fds[0], order)
        os.waitpid(between, 0)
        os.close(write)
        sock.sendall(os.read(read, 4))
        for fd in (read, *fds):
            os.close(fd)


def become_child(between: int, tests: int) -> None:
    """Wait until this is a child of the tests, and die with them."""
    os.setsid()
    while os.getppid() == between:
        time.sleep(0.001)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != tests:
        os._exit(1)


def become_worker(log: int, order: bytes) -> None:
    """Run `celery` as a process of its own would."""
    arguments, env, directory = json.loads(order)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(nothing)
    sys.argv = [sys.modules["celery.bin.celery"].__file__ or "celery", *arguments]
    import_module("celery.__main__").main()
    sys.exit()


if __name__ == "__main__":
    serve(int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])))
