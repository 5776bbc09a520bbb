"""Runs code of the documentation in a process of its own.

It connects signals, changes settings and names tasks; what it leaves must not reach other pages, or
other tests.
"""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable

import pytest


def run_in_child(function: Callable[[], object]) -> None:
    """Call a function in a copy of this process; raise AssertionError with its traceback."""
    with tempfile.TemporaryFile("w+") as failure:
        child = os.fork()
        if child == 0:
            _run(function, failure.fileno())
        _, status = os.waitpid(child, 0)
        failure.seek(0)
        assert os.waitstatus_to_exitcode(status) == 0, failure.read()


def _run(function: Callable[[], object], failure: int) -> None:
    code = 1
    try:
        vars(pytest.mark)["_config"] = None  # a page may use a marker that this suite does not have
        function()
        code = 0
    except BaseException:  # noqa: BLE001  # the parent raises it
        os.write(failure, traceback.format_exc().encode())
    finally:
        os._exit(code)  # no exit handlers: they are those of the parent
