"""Runs tests on the supported versions: make matrix. docs/reference/versions.md has the results.

The version of Python, or of a server, is what this machine has; a missing Python is skipped.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv"
nox.options.error_on_missing_interpreters = False

#: What depends most on the versions of Celery, kombu and redis-py: whole workers, and messages.
TESTS = ("tests/tasks", "tests/worker")

#: Tests of these pools are in the whole suite only.
OTHER_POOLS = "solo or threads or gevent or eventlet"

#: What depends most on the server: every script, and connections of each kind.
SERVER_TESTS = ("tests/test_servers.py", "tests/limiter", "tests/operations")


@nox.session(python=["3.10", "3.11", "3.12", "3.13", "3.14"])
def python(session: nox.Session) -> None:
    """Test each Python, with the newest dependencies."""
    session.install("--editable", ".[test]")
    run_tests(session, *TESTS)


@nox.session
@nox.parametrize("celery", ["5.5", "5.6", "5.7"])
def celery(session: nox.Session, celery: str) -> None:
    """Test each minor version of Celery, with every pool."""
    session.install("--editable", ".[test]", f"celery=={celery}.*")
    # It asks for a Celery before 5.7, but works with that.
    session.install("--no-deps", "celery-batches>=0.11")
    run_tests(session, *TESTS)
    run_tests(session, "tests/worker", "-k", OTHER_POOLS, env={"TESTS": "all"})


@nox.session
def prerelease(session: nox.Session) -> None:
    """Test pre-releases of Celery, of what it is made of, and of redis-py."""
    packages = ("celery", "kombu", "billiard", "vine", "amqp", "redis")
    session.install("--editable", ".[test]")
    session.install("--upgrade", "--prerelease", "allow", *packages)
    run_tests(session, *TESTS)


@nox.session
@nox.parametrize("redis", ["5.2", "6.4", "7.4", "8.1"])
def redis_py(session: nox.Session, redis: str) -> None:
    """Test the last minor version of each major one of redis-py, with the newest Celery for it.

    Not 5.3: with a Celery before 5.7 its lock can stop a process that reads results.
    """
    session.install("--editable", ".[test]", f"redis=={redis}.*")
    run_tests(session, *TESTS, *SERVER_TESTS)


@nox.session
def development(session: nox.Session) -> None:
    """Test the main branches of Celery, kombu and redis-py."""
    archive = "https://github.com/{}/archive/refs/heads/{}.zip"
    branches = (("celery/celery", "main"), ("celery/kombu", "main"), ("redis/redis-py", "master"))
    session.install("--editable", ".[test]")
    session.install("--upgrade", *(archive.format(*branch) for branch in branches))
    run_tests(session, *TESTS)


@nox.session
def lowest(session: nox.Session) -> None:
    """Test the lower bounds in pyproject.toml; what only the tests use is as new as they allow."""
    session.install("--editable", ".[test]", *lower_bounds(session))
    run_tests(session, *TESTS)


@nox.session
def oldest_clients(session: nox.Session) -> None:
    """Test the oldest HTTP clients and SDKs that pyproject.toml allows."""
    bounds = lower_bounds(
        session, "aiohttp", "grpc", "httpx", "httpx2", "requests", "sdks", "urllib3"
    )
    [httpx] = (one for one in bounds if one.startswith("httpx=="))
    session.install("--editable", ".[test]", *(one for one in bounds if one != httpx))
    # google-genai asks for a later one, but works with that.
    session.install("--no-deps", httpx)
    run_tests(session, "tests/clients")


@nox.session
def servers(session: nox.Session) -> None:
    """Test the servers on the PATH, or those that follow: make matrix ARGS="-s servers -- PATH"."""
    session.install("--editable", ".[test]")
    found = [shutil.which("redis-server"), shutil.which("valkey-server")]
    for command in session.posargs or filter(None, found):
        run_tests(session, *SERVER_TESTS, env={"TEST_SERVER": str(Path(command).absolute())})


def lower_bounds(session: nox.Session, *extras: str) -> list[str]:
    """Return the oldest versions that pyproject.toml allows, such as ``celery==5.5``.

    What it does not name itself is as new as these allow.
    """
    bounds = session.run(
        *("uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--no-deps"),
        *("--resolution", "lowest-direct", "--python", session.virtualenv.location),
        *(f"--extra={extra}" for extra in extras),
        "pyproject.toml",
        silent=True,
        external=True,
    )
    return str(bounds).split()


def run_tests(session: nox.Session, *tests: str, env: dict[str, str] | None = None) -> None:
    """Run tests in the environment of a session, in two processes."""
    session.run("pytest", "--numprocesses", "2", "--dist", "worksteal", *tests, env=env)
