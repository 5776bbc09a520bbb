from __future__ import annotations

import pytest

from tests.celery_suite.__main__ import verdict
from tests.celery_suite.differences import Comparison, compare, disputed_tests
from tests.celery_suite.runs import PLAIN, Run

BINDS = "binds"


def rounds(plain: str, limited: str) -> list[dict[str, Run]]:
    """A letter for each round: passed or failed."""
    words = {"p": "passed", "f": "failed"}
    return [
        {PLAIN: Run({"test": words[one]}), BINDS: Run({"test": words[other]})}
        for one, other in zip(plain, limited, strict=True)
    ]


def test_only_tests_whose_outcomes_differ_run_again() -> None:
    runs = {
        PLAIN: Run({"same": "failed", "worse": "passed", "skipped": "passed"}),
        BINDS: Run({"same": "failed", "worse": "failed", "new": "passed"}),
    }
    assert disputed_tests(runs) == ["worse", "skipped", "new"]


@pytest.mark.parametrize(
    ("plain", "limited", "differs"),
    [
        ("ppppp", "fffff", True),
        ("fffff", "ppppp", True),
        ("ppppp", "fpppp", False),
        ("fpppp", "ppppp", False),
        ("pppfp", "fffpp", True),
    ],
)
def test_noise_is_not_a_difference(plain: str, limited: str, differs: bool) -> None:  # noqa: FBT001
    (comparison,) = compare(rounds(plain, limited))
    assert comparison.differs is differs


DIFFERENCES: list[Comparison] = list(compare(rounds("ppppp", "fffff")))
NOISE: list[Comparison] = list(compare(rounds("ppppp", "fpppp")))


@pytest.mark.parametrize(
    ("comparisons", "reasons", "complaints"),
    [
        (DIFFERENCES, {(BINDS, "test"): "as it must"}, []),
        (DIFFERENCES, {}, ["binds: test differs for no known reason"]),
        (NOISE, {}, []),
        (NOISE, {(BINDS, "test"): "as it must"}, ["binds: test has a reason, but does not differ"]),
    ],
)
def test_each_difference_has_a_reason_and_each_reason_a_difference(
    comparisons: list[Comparison], reasons: dict[tuple[str, str], str], complaints: list[str]
) -> None:
    assert verdict(comparisons, reasons) == complaints
