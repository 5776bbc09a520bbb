"""The names that the pytest plugin adds, and errors for names that resemble them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from difflib import get_close_matches

import pytest

#: What all of our names begin with.
_OURS = "throttle_"

OFF, SERVER, CLOCK, LIMITS, RUNS = (
    f"{_OURS}{name}" for name in ("off", "server", "clock", "limits", "runs")
)
FIXTURES = (OFF, SERVER, CLOCK, LIMITS, RUNS)
MARKERS = (OFF,)
SETTINGS = (OFF,)

#: The least similarity of the rest of a misspelt name, 0 to 1.
_SIMILARITY = 0.6


def check_config(config: pytest.Config) -> None:
    """Raise UsageError for a setting of ours that does not exist."""
    with warnings.catch_warnings():
        # Deprecated in pytest 9, without a successor. Pytest itself only warns of unknown settings.
        warnings.simplefilter("ignore", pytest.PytestDeprecationWarning)
        written = getattr(config, "inicfg", ())
    for name in written:
        _check(str(name), SETTINGS, "setting")


def check_item(item: pytest.Item) -> None:
    """Raise UsageError for a marker that resembles ours, or has arguments."""
    registered = {line.partition(":")[0].strip() for line in item.config.getini("markers")}
    for mark in item.iter_markers():
        if mark.name in FIXTURES and mark.name not in MARKERS:
            raise pytest.UsageError(
                f"{item.nodeid}: {mark.name!r} is a fixture, not a marker; "
                f'write @pytest.mark.usefixtures("{mark.name}")'
            )
        if mark.name not in registered:
            _check(mark.name, MARKERS, f"{item.nodeid}: marker")
        if mark.name == OFF and (mark.args or mark.kwargs):
            raise pytest.UsageError(
                f"{item.nodeid}: marker {OFF!r} takes no arguments; for a test with limits use "
                f"the fixture {SERVER}, {CLOCK} or {LIMITS}"
            )


def advice_for_fixture(name: str) -> str | None:
    """Return what to write instead of a fixture that does not exist; None if it is not ours."""
    if not name.startswith(_OURS):
        return None
    similar = _find_similar(name, FIXTURES)
    right = f"write {similar!r}" if similar else f"allowed: {', '.join(map(repr, FIXTURES))}"
    return f"fixture {name!r} does not exist; {right}"


def check_combination(node: str, names: Iterable[str], *, off: bool) -> None:
    """Raise UsageError for a test that has limits switched off and asks for limits."""
    asks = [name for name in (CLOCK, LIMITS) if name in names]
    if asks and off:
        raise pytest.UsageError(
            f"{node}: {OFF} allows everything, and {asks[0]} is for limits that decide; "
            "use one of them"
        )


def _check(name: str, known: tuple[str, ...], kind: str) -> None:
    similar = None if name in known else _find_similar(name, known)
    if similar:
        raise pytest.UsageError(f"{kind} {name!r} does not exist; write {similar!r}")


def _find_similar(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a name of ours is a misspelling of."""
    if not name.startswith(_OURS):
        return None
    rests = {one.removeprefix(_OURS): one for one in known}
    found = get_close_matches(name.removeprefix(_OURS), rests, 1, _SIMILARITY)
    return rests[found[0]] if found else None
