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

#: The least similarity of a misspelt name, 0 to 1.
_SIMILARITY = 0.75


def check_config(config: pytest.Config) -> None:
    """Raise UsageError for a setting of ours that does not exist."""
    with warnings.catch_warnings():
        # Deprecated in pytest 9, without a successor. Pytest itself only warns of unknown settings.
        warnings.simplefilter("ignore", pytest.PytestDeprecationWarning)
        written = getattr(config, "inicfg", ())
    for name in written:
        _check(str(name), SETTINGS, "setting")


def check_item(item: pytest.Item) -> None:
    """Raise UsageError for a marker of ours that does not exist, or has arguments."""
    for mark in item.iter_markers():
        _check(mark.name, MARKERS, f"{item.nodeid}: marker")
        if mark.name == OFF and (mark.args or mark.kwargs):
            raise pytest.UsageError(
                f"{item.nodeid}: marker {OFF!r} takes no arguments; for a test with limits use "
                f"the fixture {SERVER}, {CLOCK} or {LIMITS}"
            )


def advice_for_fixture(name: str) -> str | None:
    """Return what to write instead of a fixture that does not exist; None if it is not ours."""
    return _advice(name, FIXTURES, "fixture")


def check_combination(node: str, names: Iterable[str], *, marked_off: bool) -> None:
    """Raise UsageError for a test that has limits switched off and asks for limits."""
    asks = [name for name in (SERVER, CLOCK, LIMITS) if name in names]
    if asks and (marked_off or OFF in names):
        raise pytest.UsageError(
            f"{node}: {OFF} allows everything, and {asks[0]} is for limits that decide; "
            "use one of them"
        )


def _check(name: str, known: tuple[str, ...], kind: str) -> None:
    advice = None if name in known else _advice(name, known, kind)
    if advice:
        raise pytest.UsageError(advice)


def _advice(name: str, known: tuple[str, ...], kind: str) -> str | None:
    similar = get_close_matches(name, known, 1, _SIMILARITY)
    if not similar and not name.startswith(_OURS):
        return None
    right = f"write {similar[0]!r}" if similar else f"allowed: {', '.join(map(repr, known))}"
    return f"{kind} {name!r} does not exist; {right}"
