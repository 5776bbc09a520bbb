"""The pytest plugin, as the test suites of users have it: each test runs pytest on one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis

from celery_throttle.testing import pytest_plugin
from tests.programs import ROOT, search_path

pytestmark = pytest.mark.thorough

Run = Callable[..., "Outcome"]

SAMPLE = ROOT / "examples" / "testing"

#: By its module: the entry point exists only where the package was installed since it has one.
PLUGIN = ("-p", "no:celery_throttle", "-p", "celery_throttle.testing.pytest_plugin")

APP = """
from celery import Celery
from celery_throttle import Limiter, Throttle
app = Celery("shop", broker="redis://nowhere.invalid")
throttle = Throttle(app, {"stripe": "1/h", "mail": "1/h burst 2"})
limiter = Limiter("redis://nowhere.invalid", {"stripe": "1/h"})
@app.task(throttle="stripe")
def charge(number):
    throttle["mail"].acquire()
"""


#: What each file of tests begins with.
HEAD = """
import pytest
from shop import *

@pytest.fixture(params=range(2))
def again(request):
    pass
"""


class Outcome:
    """What a run of pytest said."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.text = done.stdout + done.stderr
        self.code = done.returncode

    def passed(self, count: int) -> bool:
        return self.code == 0 and f"{count} passed" in self.text


def run_command(command: Sequence[str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a command without plugins of pytest that are merely installed."""
    path = search_path(directory)
    env = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=directory, env=env
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run pytest on a file of tests, or on a path, with options and lines of a settings file."""

    def run_pytest(tests: str | Path, *options: str, settings: str = "") -> Outcome:
        (tmp_path / "pytest.ini").write_text(f"[pytest]\n{settings}\n")
        (tmp_path / "shop.py").write_text(APP)
        if isinstance(tests, str):
            path = tmp_path / "test_of_user.py"
            path.write_text(HEAD + tests)
        else:
            path = tests
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *PLUGIN]
        rest = ("-c", str(tmp_path / "pytest.ini"), "--rootdir", str(tmp_path), *options, str(path))
        return Outcome(run_command([*command, *rest], tmp_path))

    return run_pytest


OFFLINE = ("-p", "tests.testing.offline")


@pytest.mark.workers
def test_the_sample_passes_with_the_embedded_server(run: Run) -> None:
    outcome = run(SAMPLE)
    assert outcome.passed(9), outcome.text


@pytest.mark.workers
def test_the_sample_passes_without_any_server(run: Run) -> None:
    outcome = run(SAMPLE, *OFFLINE, "-o", "throttle_off=true")
    assert outcome.passed(8), outcome.text
    assert "1 skipped" in outcome.text


def test_the_sample_runs_in_a_clone_without_the_plugins_of_its_own_tests() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *PLUGIN, *OFFLINE]
    outcome = Outcome(run_command([*command, "-o", "throttle_off=true", "examples/testing"], ROOT))
    assert outcome.passed(8), outcome.text


@pytest.mark.workers
@pytest.mark.parametrize("plugin", ["celery.contrib.pytest", "pytest_celery.plugin"])
def test_the_sample_passes_beside_the_plugins_of_celery(run: Run, plugin: str) -> None:
    if find_spec(plugin.partition(".")[0]) is None:
        pytest.skip(f"{plugin} is not installed")
    outcome = run(SAMPLE, "-p", plugin)
    assert outcome.passed(9), outcome.text


def test_a_marked_test_has_no_limits(run: Run) -> None:
    outcome = run(
        """
@pytest.mark.throttle_off
def test_marked():
    for _ in range(9):
        assert charge.apply((1,)).successful()
        assert limiter["stripe"].try_acquire()
        assert Limiter("redis://nowhere.invalid", {"api": "1/h"})["api"].try_acquire()

def test_with_fixture(throttle_off):
    for _ in range(9):
        assert throttle["stripe"].try_acquire(99)

@pytest.mark.throttle_off
class TestOfClass:
    def test_in_class(self):
        assert throttle.settings.enabled is False

def test_without(monkeypatch):
    assert throttle.settings.enabled is True
""",
        *OFFLINE,
    )
    assert outcome.passed(4), outcome.text


def test_a_session_may_have_no_limits(run: Run) -> None:
    outcome = run(
        """
def test_plain(throttle_server):
    assert throttle_server == "memory://"
    for _ in range(9):
        assert charge.apply((1,)).successful()

def test_clock(throttle_clock):
    assert throttle["stripe"].try_acquire()
    assert not throttle["stripe"].try_acquire()

def test_off_again():
    assert all(limiter["stripe"].try_acquire() for _ in range(9))
""",
        *OFFLINE,
        settings="throttle_off = true",
    )
    assert outcome.passed(3), outcome.text


def test_the_clock_moves_all_limiters_and_each_test_begins_anew(run: Run) -> None:
    outcome = run(
        """
def test_clock(again, throttle_clock):
    for one in (throttle, limiter):
        assert one["stripe"].try_acquire()
        assert one["stripe"].try_acquire().retry_after == 3600
    throttle_clock.advance(3600)
    assert limiter["stripe"].try_acquire()
    assert limiter["stripe"].try_acquire(max_wait=3600)
    assert throttle_clock.now == 7_200_000_000

def test_limits(again, throttle_limits):
    throttle_limits({"mail": "1/h"})
    charge(1)
    throttle_limits(stripe="1/h burst 3")
    assert [bool(throttle["stripe"].try_acquire()) for _ in range(4)] == [True] * 3 + [False]
    assert charge.apply((1,)).failed()
""",
        *OFFLINE,
    )
    assert outcome.passed(4), outcome.text


def test_the_private_server_decides_and_each_test_begins_anew(run: Run) -> None:
    outcome = run(
        """
def test_server(again, throttle_server):
    for _ in range(2):
        assert throttle["mail"].try_acquire()
    assert not throttle["mail"].try_acquire()
    other = Limiter(throttle_server, {"mail": "1/h burst 2"})
    assert not other["mail"].try_acquire()

def test_clock(again, throttle_server, throttle_clock):
    assert limiter["stripe"].try_acquire()
    throttle_clock.advance(3600)
    assert limiter["stripe"].try_acquire()

def test_limits(again, throttle_server, throttle_limits):
    throttle_limits(mail="1/h burst 5")
    assert all(throttle["mail"].try_acquire() for _ in range(5))
    assert not throttle["mail"].try_acquire()
"""
    )
    assert outcome.passed(6), outcome.text


def test_a_limiter_with_a_prefix_of_its_own_begins_anew_in_each_test(run: Run) -> None:
    outcome = run(
        """
own = Limiter("redis://nowhere.invalid", {"stripe": "1/h"}, prefix="{own}")

def test_server(again, throttle_server):
    assert own["stripe"].try_acquire()
    assert not own["stripe"].try_acquire()

def test_made_in_the_test(again, throttle_server):
    limiter = Limiter(throttle_server, {"stripe": "1/h"}, prefix="{other}")
    assert limiter["stripe"].try_acquire()
"""
    )
    assert outcome.passed(4), outcome.text


def test_the_record_of_runs_says_what_happened(run: Run) -> None:
    outcome = run(
        """
@pytest.mark.throttle_off
def test_runs(throttle_runs):
    charge.apply((1,))
    charge.apply((2,), {})
    assert [run.args for run in throttle_runs.started("shop.charge")] == [(1,), (2,)]
    throttle_runs.assert_not_throttled()
    throttle_runs.assert_most_starts(2, seconds=60)
    throttle_runs.assert_throttled(count=1)
"""
    )
    assert outcome.code == 1
    assert "tasks that were throttled: 0, not 1:" in outcome.text
    assert "shop.charge(1) started at 0." in outcome.text


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        (
            "@pytest.mark.throttle_of\ndef test(): pass",
            "marker 'throttle_of' does not exist; allowed: 'throttle_off'",
        ),
        (
            "@pytest.mark.throttle_clock\ndef test(): pass",
            "'throttle_clock' does not exist; allowed: 'throttle_off'; a fixture is requested by",
        ),
        (
            "@pytest.mark.throttle_off(False)\ndef test(): pass",
            "marker 'throttle_off' takes no arguments; for a test with limits use the fixture",
        ),
        (
            "@pytest.mark.throttle_off\ndef test(throttle_clock): pass",
            "throttle_off allows everything, and throttle_clock is for limits that decide",
        ),
        (
            "def test(throttle_limits): throttle_limits(strip='1/s')",
            "there is no limit 'strip'; write 'stripe'",
        ),
        (
            "def test(throttle_limits): throttle_limits(stripe='1 per s')",
            "limit 'stripe': ",
        ),
    ],
)
def test_a_mistake_gets_an_error_that_names_the_right_word(
    run: Run, tests: str, message: str
) -> None:
    outcome = run(tests)
    assert outcome.code != 0
    assert message in outcome.text


def test_names_of_others_are_left_alone(run: Run) -> None:
    outcome = run(
        """
@pytest.mark.throttle_slow
def test_marker_of_the_user(throttle_limits):
    limiter = Limiter("redis://nowhere.invalid", {"own": "1/h"})
    throttle_limits(own="1/h burst 3")
    assert [bool(limiter["own"].try_acquire()) for _ in range(4)] == [True] * 3 + [False]
""",
        settings="markers = throttle_slow: of the user",
    )
    assert outcome.passed(1), outcome.text


def test_an_earlier_use_of_a_limiter_changes_nothing(run: Run) -> None:
    """A call that was built for a server is not sent where none decides, nor by another clock."""
    outcome = run(
        """
def use(one):
    return [bool(one["mail"].try_acquire()) for _ in range(2)]

def test_first(throttle_server):
    assert use(throttle) == [True, True]

def test_limits(throttle_limits):
    throttle_limits(mail="1/h")
    assert use(throttle) == [True, False]

def test_clock(throttle_server, throttle_clock, throttle_limits):
    throttle_limits(mail="1/h")
    assert use(throttle) == [True, False]
    throttle_clock.advance(3600)
    assert use(throttle) == [True, False]

@pytest.mark.throttle_off
def test_off(throttle_server):
    assert throttle_server.startswith("redis://")
    assert use(throttle) == use(throttle) == [True, True]

def test_again(throttle_server):
    assert use(throttle) == [True, True]
    assert use(throttle) == [False, False]
"""
    )
    assert outcome.passed(5), outcome.text


@pytest.mark.workers
def test_a_worker_without_limits_leaves_nothing_to_the_next_test(run: Run) -> None:
    outcome = run(
        """
from celery.contrib.testing.worker import start_worker

@pytest.mark.throttle_off
def test_worker(throttle_server):
    app.conf.broker_url = throttle_server
    with start_worker(app, pool="solo", perform_ping_check=False):
        pass

def test_next():
    assert type(throttle.plans).__name__ == "Plans"
"""
    )
    assert outcome.passed(2), outcome.text


@pytest.mark.workers
def test_a_worker_refuses_a_clock(run: Run) -> None:
    outcome = run(
        """
from celery.contrib.testing.worker import start_worker

def test_worker(throttle_server, throttle_clock):
    app.conf.broker_url = throttle_server
    with start_worker(app, pool="solo", perform_ping_check=False):
        pass
"""
    )
    assert outcome.code == 1
    assert "a worker decides by the time of its server" in outcome.text


OVERRIDES = {
    "CELERY_BROKER_URL": "broker",
    "CELERY_BROKER_READ_URL": "broker",
    "CELERY_BROKER_WRITE_URL": "broker",
    "CELERY_RESULT_BACKEND": "backend",
}


@pytest.mark.parametrize("variable", OVERRIDES)
def test_a_session_is_refused_whose_settings_the_environment_overrides(
    run: Run, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "redis://user:hidden-word@real.invalid/0")
    tests = f"""
Throttle(Celery("named", {OVERRIDES[variable]}="redis://of-tests.invalid"))

def test_never(): pass
"""
    outcome = run(tests)
    assert outcome.code == pytest.ExitCode.USAGE_ERROR
    assert f"{variable}=redis://real.invalid/0 is set in the environment" in outcome.text
    assert "hidden-word" not in outcome.text


def test_a_broker_that_only_the_environment_names_is_allowed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://nowhere.invalid")
    tests = """
unnamed = Celery("unnamed")
Throttle(unnamed)

def test_broker():
    assert unnamed.conf.broker_url == app.conf.broker_url == "redis://nowhere.invalid"
"""
    outcome = run(tests)
    assert outcome.passed(1), outcome.text


@pytest.mark.workers
def test_no_worker_consumes_from_another_broker_than_a_fixture_sets(
    run: Run, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", redis_url)
    tests = f"""
from celery.contrib.testing.worker import start_worker

app.conf.update(broker_url={redis_url!r})

def test_allowed():
    app.connection_for_write().ensure_connection(max_retries=1)

@pytest.fixture
def worker():
    app.conf.update(broker_url="memory://")
    with start_worker(app, pool="solo", perform_ping_check=False):
        yield

def test_worker(worker): pass

def test_caught(throttle_limits):
    try:
        charge.delay(1)
    except Exception:
        pass
"""
    outcome = run(tests)
    assert "1 failed, 1 passed, 1 error" in outcome.text, outcome.text
    assert outcome.text.count("Celery prefers it to the setting of app 'shop', 'memory://'") >= 2
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0


def test_it_does_nothing_where_nothing_is_asked_of_it(tmp_path: Path) -> None:
    tests = tmp_path / "test_plain.py"
    tests.write_text("import sys\ndef test(): assert not {'celery', 'redis'} & {*sys.modules}\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *PLUGIN, str(tests)]
    done = run_command(command, tmp_path)
    assert done.returncode == 0, done.stdout


def test_no_fixture_has_a_name_of_another_plugin() -> None:
    """Those of Celery and pytest-celery begin with `celery_`, `default_` and others."""
    fixtures = [name for name in vars(pytest_plugin) if name in pytest_plugin.FIXTURES]
    assert sorted(fixtures) == sorted(pytest_plugin.FIXTURES)
    assert all(name.startswith("throttle_") for name in fixtures)


def test_pytest_finds_it_by_its_entry_point() -> None:
    points = {point.name: point.value for point in entry_points(group="pytest11")}
    assert points["celery_throttle"] == "celery_throttle.testing.pytest_plugin"
