"""The command ``web``, as a process that a browser reads."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.cli.conftest import fill
from tests.cli.serving import serving_process
from tests.cli.test_entries import CELERY, COMMAND, run
from tests.servers.server import free_port

pytestmark = pytest.mark.thorough


def serving(
    command: Sequence[str], url: str, *options: str, **env: str
) -> AbstractContextManager[tuple[subprocess.Popen[str], str]]:
    says = "Serving the page on http://"
    return serving_process([*command, "web", *options], url, says, **env)


def read(address: str, data: bytes | None = None, **headers: str) -> tuple[int, str]:
    try:
        with urlopen(Request(address, data, headers), timeout=100) as reply:  # noqa: S310  # of this test
            return reply.status, reply.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def post(address: str, **headers: str) -> tuple[int, str]:
    return read(address, b"", **headers)


def test_actions(app: Any) -> None:
    url = app.throttle.settings.url
    with serving([COMMAND, "--url", url], url, "--actions", "pause, resume") as (_, address):
        path = f"{address}limits/mail/"
        host = address.split("/")[2]
        assert post(f"{path}pause")[0] == 403
        assert post(f"{path}pause", Origin="http://evil.example")[0] == 403
        assert post(f"{path}define", Origin=f"http://{host}")[0] == 403
        status, page = post(f"{path}pause", Origin=f"http://{host}")
        assert (status, "paused until it is resumed, by web" in page) == (200, True)
        # A name of a foreign site that leads to this machine.
        assert post(f"{path}resume", Origin="http://evil.example", Host="evil.example")[0] == 400
    assert app.throttle["mail"].status().pauses
    app.throttle["mail"].resume()


def test_unknown_actions(redis_url: str) -> None:
    error = run(COMMAND, "--url", redis_url, "web", "--actions", "pause,stop", code=2)
    assert "action 'stop' is unknown; allowed: a list of pause, resume" in error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("has_app", [True, False])
def test_the_page_until_the_end(
    app: Any, redis_url: str, number: signal.Signals, *, has_app: bool
) -> None:
    fill(app, 5)
    command = [*CELERY, "throttle"] if has_app else [COMMAND, "--url", redis_url]
    with serving(command, redis_url) as (process, address):
        status, page = read(address)
        assert (status, "<b>5</b>" in page) == (200, True)
        assert ("5 tasks in queue celery:" in page) == has_app
        assert read(address, Host="evil.example")[0] == 400
        process.send_signal(number)
        assert process.wait(100) == 0
        assert process.communicate() == ("", "")


@pytest.mark.parametrize("source", ["file", "variable"])
def test_a_password(redis_url: str, tmp_path: Path, source: str) -> None:
    file = tmp_path / "password"
    file.write_text("secret\n", encoding="utf-8")
    options = ["--password-file", str(file)] if source == "file" else []
    env = {} if source == "file" else {"THROTTLE_WEB_PASSWORD": "secret"}
    command = [COMMAND, "--url", redis_url]
    with serving(command, redis_url, "--host", "0.0.0.0", *options, **env) as (_, shown):  # noqa: S104  # with a password
        address = shown.replace("0.0.0.0", "127.0.0.1")  # noqa: S104  # as above
        assert read(address)[0] == 401
        given = b64encode(b"ann:secret").decode()
        assert read(address, Authorization=f"Basic {given}", Host="shop.example")[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "shop.example"])  # noqa: S104  # refused
def test_other_machines_need_a_password(redis_url: str, host: str) -> None:
    error = run(COMMAND, "--url", redis_url, "web", "--host", host, code=2)
    assert f"--host {host} is open to other machines: give a password" in error


def test_an_empty_password_file(redis_url: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("\nsecret", encoding="utf-8")
    error = run(COMMAND, "--url", redis_url, "web", "--password-file", str(file), code=2)
    assert f"--password-file {file}: its first line is empty; allowed: a password" in error


def test_a_password_file_of_other_bytes(redis_url: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(b"secret\xff\n")
    error = run(COMMAND, "--url", redis_url, "web", "--password-file", str(file), code=2)
    assert f"--password-file {file} is not UTF-8" in error
    assert "secret" not in error


def test_a_large_request_is_refused_before_it_is_read(redis_url: str) -> None:
    with serving([COMMAND, "--url", redis_url], redis_url) as (_, address):
        connection = HTTPConnection(address.split("/")[2], timeout=100)
        connection.putrequest("POST", "/limits/mail/pause")
        connection.putheader("Content-Length", "2000000")
        connection.endheaders()
        assert connection.getresponse().status == 413
        connection.close()


@pytest.fixture
def unfinished(redis_url: str) -> Iterator[tuple[str, list[socket.socket]]]:
    """The address of a page, and 150 connections with a request that never ends."""
    with serving([COMMAND, "--url", redis_url], redis_url) as (_, address), ExitStack() as stack:
        host, port = address.split("/")[2].split(":")
        connections = []
        for _ in range(150):
            connections.append(
                stack.enter_context(socket.create_connection((host, int(port)), timeout=100))
            )
            connections[-1].sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        yield address, connections


def test_unfinished_requests_do_not_block_the_page(
    unfinished: tuple[str, list[socket.socket]],
) -> None:
    address, _ = unfinished
    assert read(address)[0] == 200


@pytest.mark.thorough
def test_unfinished_requests_are_closed(unfinished: tuple[str, list[socket.socket]]) -> None:
    _, connections = unfinished
    for connection in connections:
        assert connection.recv(1) == b""


def test_a_missing_password_file(redis_url: str) -> None:
    error = run(COMMAND, "--url", redis_url, "web", "--password-file", "/no/file", code=2)
    assert "--password-file /no/file: No such file or directory" in error


def test_a_port_in_use(redis_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        error = run(COMMAND, "--url", redis_url, "web", "--port", port, code=1)
    assert error == f"Error: cannot listen on 127.0.0.1, port {port}: Address already in use\n"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--show-arguments"], "this needs the app, "),
        (["--actions", "all,paus"], "action 'paus' is unknown"),
    ],
)
def test_no_option_is_ignored(redis_url: str, options: list[str], text: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:  # so that it does not serve
        port = str(other.getsockname()[1])
        error = run(COMMAND, "--url", redis_url, "web", "--port", port, *options, code=2)
    assert text in error


def test_localhost_listens_on_all_its_addresses(redis_url: str) -> None:
    with serving([COMMAND, "--url", redis_url], redis_url, "--host", "localhost") as (_, address):
        assert address.startswith("http://localhost:")
        assert not address.endswith(":0/")


def test_a_server_that_is_down_at_the_start() -> None:
    url = f"redis://ann:hidden-word@127.0.0.1:{free_port()}/0"
    with serving([COMMAND, "--url", url], url) as (_, address):
        status, page = read(address)
        assert (status, "hidden-word" in page) == (503, False)


@pytest.mark.parametrize("package", ["flask", "waitress"])
def test_the_extra_is_missing(redis_url: str, package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; "
    code += "from celery_throttle.cli import main; main()"
    error = run(sys.executable, "-c", code, "--url", redis_url, "web", code=1)
    assert error.endswith('pip install "celery-global-throttle[web]"\n')
    assert error.count("\n") == 1
