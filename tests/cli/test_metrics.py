"""The command ``metrics``, as a process that Prometheus scrapes; the address of a page."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any
from urllib.request import urlopen

import pytest

from celery_throttle.cli.serve import http_url
from tests.cli.conftest import fill
from tests.cli.serving import serving_process
from tests.cli.test_entries import CELERY, COMMAND, run
from tests.observe.metrics.page import Page
from tests.servers.server import free_port


def serving(
    command: Sequence[str], url: str
) -> AbstractContextManager[tuple[subprocess.Popen[str], str]]:
    says = "Serving metrics on http://127.0.0.1:"
    return serving_process([*command, "metrics", "--host", "127.0.0.1"], url, says)


def scrape(address: str) -> Page:
    with urlopen(address, timeout=100) as response:  # noqa: S310  # of this test
        return Page(response.read().decode())


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("has_app", [True, False])
def test_the_page_until_the_end(
    app: Any, redis_url: str, number: signal.Signals, *, has_app: bool
) -> None:
    fill(app, 5)
    command = [*CELERY, "throttle"] if has_app else [COMMAND, "--url", redis_url]
    with serving(command, redis_url) as (process, address):
        page = scrape(address)
        assert page.get("tasks_waiting", limit="mail") == 5
        assert page.of("tasks_runnable").keys() == {("celery",)}
        process.send_signal(number)
        assert process.wait(100) == 0
        assert process.communicate() == ("", "")


def test_a_port_in_use(app: Any, redis_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        options = ("metrics", "--host", "127.0.0.1", "--port", port)
        error = run(COMMAND, "--url", redis_url, *options, code=1)
    assert error == f"Error: cannot listen on 127.0.0.1, port {port}: Address already in use\n"
    assert app


def test_a_server_that_is_down_at_the_start() -> None:
    url = f"redis://ann:secret@127.0.0.1:{free_port()}/0"
    with serving([COMMAND, "--url", url], url) as (process, address):
        assert scrape(address).get("up") == 0
        process.send_signal(signal.SIGINT)
        process.wait(100)
        assert process.stderr is not None
        assert "secret" not in process.stderr.read()


def test_limits_in_memory() -> None:
    assert "memory://" in run(COMMAND, "--url", "memory://", "metrics", code=2)


def test_the_extra_is_missing(redis_url: str) -> None:
    code = "import sys; sys.modules['prometheus_client'] = None; "
    code += "from celery_throttle.cli import main; main()"
    error = run(sys.executable, "-c", code, "--url", redis_url, "metrics", code=1)
    assert error.endswith('pip install "celery-global-throttle[metrics]"\n')
    assert error.count("\n") == 1


def test_the_address_of_a_page() -> None:
    assert http_url("127.0.0.1", 9808, "/metrics") == "http://127.0.0.1:9808/metrics"
    assert http_url("::1", 5556, "/") == "http://[::1]:5556/"
