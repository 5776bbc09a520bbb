"""The outcomes that a limit changes, and the judgement of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.celery_suite.runs import PLAIN, Run

#: Mode and id of a test.
Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A test in a mode: its outcomes in all rounds, and those on plain Celery."""

    mode: str
    test: str
    outcomes: Counter[str]
    plain: Counter[str]

    @property
    def place(self) -> Place:
        return self.mode, self.test

    @property
    def differs(self) -> bool:
        """Whether its usual outcome is another one than on plain Celery."""
        return _usual(self.outcomes) != _usual(self.plain)


def _usual(outcomes: Counter[str]) -> str:
    return outcomes.most_common(1)[0][0]


def disputed_tests(runs: Mapping[str, Run]) -> list[str]:
    """The tests whose outcome is not the same in all modes."""
    tests = dict.fromkeys(test for run in runs.values() for test in run.outcomes)
    return [test for test in tests if len({run.outcomes.get(test) for run in runs.values()}) > 1]


def compare(rounds: Sequence[Mapping[str, Run]]) -> Iterator[Comparison]:
    """Yield the tests with other outcomes than on plain Celery, of those that ran in all rounds."""
    for test in dict.fromkeys(test for run in rounds[-1].values() for test in run.outcomes):
        counts = {
            mode: Counter(runs[mode].outcomes.get(test, "missing") for runs in rounds)
            for mode in rounds[0]
        }
        for mode, outcomes in counts.items():
            if outcomes != counts[PLAIN]:
                yield Comparison(mode, test, outcomes, counts[PLAIN])


def complaints(comparisons: Sequence[Comparison], reasons: Collection[Place]) -> list[str]:
    """Return a complaint for each difference without a reason, and each reason without one.

    A test that has its usual outcome too, but not always, needs no reason and may have one.
    """
    seen = {one.place for one in comparisons}
    unknown = [one.place for one in comparisons if one.differs and one.place not in reasons]
    return [
        *(f"{mode}: {test} differs for no known reason" for mode, test in unknown),
        *(
            f"{mode}: {test} has a reason, but does not differ"
            for mode, test in reasons
            if (mode, test) not in seen
        ),
    ]
