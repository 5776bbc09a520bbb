from __future__ import annotations

import weakref
from pathlib import Path

from celery import Celery

from tests.servers.server import Server, valkey_command


def test_a_server_outlives_results_that_nothing_uses(tmp_path: Path) -> None:
    server = Server(valkey_command(), tmp_path)
    with Celery("results", broker=server.url, backend=server.url, set_as_current=False) as app:
        result = app.send_task("unknown")
        app.backend.store_result(result.id, "ran", "SUCCESS")
        assert result.get(timeout=60) == "ran"
        unused = weakref.ref(result)
        del result
    server.stop()
    assert unused() is None
