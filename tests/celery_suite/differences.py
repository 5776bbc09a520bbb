"""The outcomes that a limit changes, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.celery_suite.runs import PLAIN, Run

#: Mode and id of a test to the reason of a known difference.
REASONS: dict[tuple[str, str], str] = {}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A test with limits: its outcomes in all rounds of a mode, and in those of plain Celery."""

    mode: str
    test: str
    outcomes: Counter[str]
    plain: Counter[str]

    @property
    def differs(self) -> bool:
        """Whether its usual outcome is another one than on plain Celery. The rest is noise."""
        return _usual(self.outcomes) != _usual(self.plain)


def _usual(outcomes: Counter[str]) -> str:
    return outcomes.most_common(1)[0][0]


def disputed_tests(runs: Mapping[str, Run]) -> list[str]:
    """The tests whose outcome is not the same in all modes."""
    tests = dict.fromkeys(test for run in runs.values() for test in run.outcomes)
    return [test for test in tests if len({run.outcomes.get(test) for run in runs.values()}) > 1]


def compare(rounds: Sequence[Mapping[str, Run]]) -> Iterator[Comparison]:
    """Compare the disputed tests of the first round, over all rounds."""
    for test in disputed_tests(rounds[0]):
        counts = {
            mode: Counter(runs[mode].outcomes.get(test, "missing") for runs in rounds)
            for mode in rounds[0]
        }
        for mode, outcomes in counts.items():
            if outcomes != counts[PLAIN]:
                yield Comparison(mode, test, outcomes, counts[PLAIN])
