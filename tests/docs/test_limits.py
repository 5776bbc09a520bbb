"""docs/reference/limits.md agrees with the parser of limits."""

from __future__ import annotations

import re
from itertools import chain

import pytest

from celery_throttle import errors
from celery_throttle.errors import LimitError, LimitValueError
from celery_throttle.limits import duration, grammar, limit, rate
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.requirement import MAX_LIMITS_PER_NAME, parse_limits
from tests.docs import pages

PAGE = pages.read("reference/limits.md")

EXAMPLES = [
    [cell.strip("`") for cell in row[:2]] for row in pages.table(PAGE, "What you can write")
]
MISTAKES = [[cell.strip("`") for cell in row] for row in pages.table(PAGE, "Errors")]
ALGORITHMS = pages.table(PAGE, "Which clauses can be combined")

#: A limit of each algorithm, and each clause with a value.
HEADS = {name: f"10/d using {name}" for name in grammar.ALGORITHMS} | {
    "adaptive": "adaptive 1..10/d",
    "at once": "10 at once",
    "adaptive`, `at once": "adaptive 2..10 at once",
}
CLAUSES = {
    "burst": ["burst 5"],
    "from": ["from first-request"],
    "in`, `at": ["in UTC", "at 07:30"],
    "parts": ["parts 6"],
    "oldest": ["oldest dropped"],
    "latency": ["latency 5s"],
    "shadow": ["shadow"],
    "max-keys": ["max-keys 5"],
    "max-waiting": ["max-waiting 5"],
    "outage": ["outage open"],
}


@pytest.mark.parametrize(("text", "normal"), EXAMPLES)
def test_an_example_parses_to_its_normal_form(text: str, normal: str) -> None:
    parsed = Limit.parse(text)
    assert str(parsed) == normal
    assert Limit.parse(normal) == parsed
    assert Limit.parse(text.upper() if " in " not in text else text) == parsed


def test_the_intervals_of_the_examples() -> None:
    """The page says "one every 17.28 s"."""
    said = dict(
        re.findall(r"^\| `([^`]+)` \| .*(?:one|unit|start) every ([\d.]+ m?s)", PAGE, re.MULTILINE)
    )
    assert len(said) == 5
    for text, interval in said.items():
        number, unit = interval.split()
        found = Limit.parse(text).rate
        assert isinstance(found, rate.Rate)
        assert found.period_us / found.count == float(number) * duration.UNITS[unit]


def test_every_keyword_and_algorithm_is_in_the_grammar() -> None:
    text = PAGE.partition("```text\n")[2].partition("```")[0]
    words = {*re.findall(r'"([a-z-]+(?: [a-z]+)?)"', text)}
    assert {*chain(grammar._KEYWORDS, grammar.ALGORITHMS, grammar.OUTAGE_MODES)} <= words
    sections = re.findall(r"^### (`.*)$", PAGE, re.MULTILINE)
    assert {*re.findall(r"`([\w-]+)`", " ".join(sections))} == {*grammar._KEYWORDS}


def test_the_units() -> None:
    rows = {row[0].strip("`"): row for row in pages.table(PAGE, "Units of time")}
    assert {*rows} == {*duration.UNITS}
    for symbol, row in rows.items():
        spellings = re.findall(r"`(\w+)`", " ".join(row[:2]))
        assert {*spellings} == {s for s, one in duration.SPELLINGS.items() if one == symbol}


def test_the_ranges() -> None:
    text = PAGE.partition("### Ranges")[2].partition("##")[0].replace(",", "")
    units = f"1 to {rate.MAX_UNITS}"
    assert f"| count of a rate | {units} |" in text
    assert f"| `burst` | {units} |" in text
    assert f"| number of slots | 1 to {rate.MAX_SLOTS} |" in text
    assert f"to {rate.MAX_PERIOD_US // duration.UNITS['d']} days" in text
    assert f"a {limit.MAX_ADAPTIVE_RATIO}th" in text
    assert f"| `parts` | 1 to {limit.MAX_PARTS};" in text
    assert f"`max-waiting` | 1 to {limit.MAX_KEYS} |" in text
    assert f"1 to {MAX_LIMITS_PER_NAME} limits" in PAGE


def test_every_algorithm_and_clause_is_in_the_matrix() -> None:
    head = re.findall(r"^\| \| (`burst`.*) \|$", PAGE, re.MULTILINE)[0]
    assert [cell.strip("`") for cell in head.split(" | ")] == [*CLAUSES]
    assert [row[0].strip("`") for row in ALGORITHMS] == [*HEADS]


@pytest.mark.parametrize("row", ALGORITHMS, ids=lambda row: row[0])
def test_the_clauses_that_can_be_combined(row: list[str]) -> None:
    name, *cells = row
    for cell, clauses in zip(cells, CLAUSES.values(), strict=True):
        for clause in clauses:
            text = f"{HEADS[name.strip('`')]} {clause}"
            if cell == "yes":
                Limit.parse(text)
            else:
                with pytest.raises(LimitValueError):
                    Limit.parse(text)


@pytest.mark.parametrize(("text", "error", "message"), MISTAKES)
def test_the_message_of_a_mistake(text: str, error: str, message: str) -> None:
    with pytest.raises(LimitError) as caught:
        Limit.parse(text)
    assert type(caught.value) is getattr(errors, error)
    found, (start, more, _) = str(caught.value), message.partition("…")
    assert found.startswith(start) if more else found == message


def test_the_lists() -> None:
    source = PAGE.partition("```python\n")[2].partition("```")[0]
    namespace: dict[str, dict[str, list[str]]] = {}
    exec(source, namespace)  # noqa: S102  # our own page
    for name, texts in namespace["limits"].items():
        parse_limits(texts, name)
