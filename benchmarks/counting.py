"""What counting costs: the time of a decision and of a claim, with the counters and without them.

Theirs are the same scripts with the lines that count taken out. Both sides have limits of their own
on one server and make the same calls, in turns; figures are medians of single calls, and their
ratio is the median of the ratios of the turns. A claim takes one task.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from hashlib import sha1
from statistics import median

from benchmarks.lines import Claimant, park
from benchmarks.results import Figure, Options, Result
from benchmarks.stage import Stage
from celery_throttle import Limiter
from celery_throttle.limits.key import ItemLike
from celery_throttle.store.script import Call, Script, script

CALLS = 50
BAR = 1.02
LIMITS = dict.fromkeys(("api", "mail", "sms"), "1000000/s burst 1000000")

#: The lines that count: a regular expression, and how many places of the script it is for.
_FAST_PATH = r" *local totals.*\n *if .*'HINCRBY'(?:.*\n)+? *end\n"
_CLAIM = r"^ +(?:note_claim|write_claim_totals)\(batch, [\w.]+\)\n"


def run(options: Options) -> Result:
    """Time decisions over one limit and over three, and claims."""
    turns = options.pick(200, 20)
    figures = []
    with Stage() as stage:
        sides = [_Side(stage, "{counted}"), _Side(stage, "{plain}", counts=False)]
        needs: dict[str, Sequence[ItemLike]] = {
            "one limit": ["api"],
            "a key": [("api", "42")],
            "three limits": [*LIMITS],
        }
        for what, refs in needs.items():
            options.say(f"counting: decisions over {what}")
            for side in sides:
                side.prepare_decision(refs)
            figures += _figures(f"decision, {what}", [side.decide for side in sides], turns)
        options.say("counting: claims")
        for side in sides:
            side.park((turns + 1) * CALLS)
        figures += _figures("claim", [side.claim for side in sides], turns)
    return Result(name="counting", theirs="the same scripts without counters", figures=figures)


class _Side:
    """Limits and a line under a prefix of their own, with scripts that count or do not."""

    def __init__(self, stage: Stage, prefix: str, *, counts: bool = True) -> None:
        self._limiter = Limiter(stage.store_url, LIMITS, prefix=prefix)
        self._limiter.register()
        self._store = self._limiter.store
        self._claimant = Claimant(self._limiter)
        self._scripts = {"acquire": script("acquire"), "claim": script("claim")}
        if not counts:
            self._scripts = {
                "acquire": _without(_FAST_PATH, "acquire", 3),
                "claim": _without(_CLAIM, "claim", 2),
            }
        # Both sides make each call anew, as that takes time, too.
        self._run = self._store.run
        self._store.run = lambda call, note=None: self._run(self._replace(call), note)  # type: ignore[method-assign]  # of one object

    def _replace(self, call: Call) -> Call:
        return Call(self._scripts.get(call.script.name, call.script), call.keys, call.args)

    def prepare_decision(self, refs: Sequence[ItemLike]) -> None:
        """Make the call of the next decisions; run it once, so that its state exists."""
        limits = [self._limiter[ref] for ref in refs]
        self._limiter.try_acquire(limits)
        (call,) = self._limiter.require(limits, 1).calls.values()
        self._decision = self._replace(call)

    def decide(self) -> float:
        """Return the seconds of a decision."""
        began = time.perf_counter()
        self._store.probe(self._decision)
        return time.perf_counter() - began

    def park(self, tasks: int) -> None:
        """Let tasks wait in one line, and their limit have room."""
        limiter = self._limiter
        limiter["api"].pause(60)
        for number in range(tasks):
            self._store.run(park(limiter, ["api"], f"{number}"))
        limiter["api"].resume()

    def claim(self) -> float:
        """Return the seconds of a claim."""
        return self._claimant.claim([self._claimant.token])[0]


def _without(pattern: str, name: str, places: int) -> Script:
    """Return a script without the lines that count."""
    source, count = re.subn(pattern, "", script(name).source.decode(), flags=re.MULTILINE)
    if count != places:
        raise RuntimeError(f"{name}.lua counts in {count} places, not {places}")
    return Script(name, source.encode(), sha1(source.encode(), usedforsecurity=False).hexdigest())


def _figures(what: str, sides: list[Callable[[], float]], turns: int) -> list[Figure]:
    took: list[list[float]] = [[], []]
    for _ in range(turns):
        order = random.sample([0, 1], 2)
        turn = {index: [sides[index]() for _ in range(CALLS)] for index in order}
        for index in order:
            took[index].append(median(turn[index]))
    ours, theirs = (median(one) * 1e6 for one in took)
    ratios = [counted / plain for counted, plain in zip(*took, strict=True)]
    return [
        Figure(what, "us", ours, theirs),
        Figure(f"{what}, to without", "", median(ratios), at_most=BAR),
    ]
