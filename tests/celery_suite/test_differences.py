from __future__ import annotations

import pytest

from tests.celery_suite.differences import compare, complaints, disputed_tests
from tests.celery_suite.runs import PLAIN, Run

WORDS = {"p": "passed", "f": "failed"}
REASON = ("binds", "test")
UNKNOWN = ["binds: test differs for no known reason"]
STALE = ["binds: test has a reason, but does not differ"]


def test_tests_run_again_if_their_outcomes_differ() -> None:
    runs = {
        PLAIN: Run({"same": "failed", "worse": "passed", "lost": "passed"}),
        "binds": Run({"same": "failed", "worse": "failed", "new": "passed"}),
    }
    assert disputed_tests(runs) == ["worse", "lost", "new"]


@pytest.mark.parametrize(
    ("plain", "limited", "without_reason", "with_reason"),
    [
        ("ppppp", "fffff", UNKNOWN, []),
        ("fffff", "ppppp", UNKNOWN, []),
        ("ppppf", "fffpp", UNKNOWN, []),
        ("ppppp", "fpppp", [], []),  # noise, or a reason that does not always tell
        ("fpppp", "ppppp", [], []),
        ("ppppp", "ppppp", [], STALE),
        ("fffff", "fffff", [], STALE),
    ],
)
def test_each_difference_has_a_reason_and_each_reason_a_difference(
    plain: str, limited: str, without_reason: list[str], with_reason: list[str]
) -> None:
    rounds = [
        {PLAIN: Run({"test": WORDS[one]}), "binds": Run({"test": WORDS[other]})}
        for one, other in zip(plain, limited, strict=True)
    ]
    comparisons = list(compare(rounds))
    assert complaints(comparisons, []) == without_reason
    assert complaints(comparisons, [REASON]) == with_reason
