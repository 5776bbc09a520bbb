"""The private server of tests and of the demo."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from celery_throttle.testing import server


def test_a_port_that_another_server_takes_first_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    with ExitStack() as ends:
        url = server.start_server(one, ends)
        taken = int(url.removesuffix("/0").rpartition(":")[2])
        ports = iter([taken, server._free_port()])
        monkeypatch.setattr(server, "_free_port", lambda: next(ports))
        assert server.start_server(other, ends) != url
