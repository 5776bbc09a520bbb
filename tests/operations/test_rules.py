"""Layers on a server: rules files between what the code and what people define."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from celery_throttle import Limiter
from celery_throttle.errors import RulesError
from celery_throttle.limiter.limiter import apply_rules
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.requirement import parse_definitions, parse_limits
from celery_throttle.limits.rules.reader import read_rules
from celery_throttle.limits.rules.rules import Route, Rules
from celery_throttle.operations.rules import Applied, FileRules, RulesVersion, report_rules
from celery_throttle.store import definitions
from celery_throttle.store.script import Call, script
from celery_throttle.testing import ManualClock
from tests.protocol import SECOND, START


def rules(**limits: str) -> Rules:
    """Rules with limits of names; two underscores stand for the colon before a key."""
    rows = "\n".join(f'"{ref.replace("__", ":")}" = "{text}"' for ref, text in limits.items())
    return read_rules(f"[limits]\n{rows}", "limits.toml")


@pytest.fixture
def limiter(redis_url: str) -> Limiter:
    return Limiter(redis_url, {"code": "1/s"}, clock=ManualClock(START))


def used_up(limiter: Limiter, name: str, key: str | None = None) -> int:
    """Acquire until the limit refuses; return how often it allowed."""
    count = 0
    while limiter.try_acquire([limiter[name, key] if key else name]):
        count += 1
    return count


def texts_in_force(limiter: Limiter, *fields: str) -> list[str | None]:
    call = Call(script("read_definitions"), [limiter.keys.limits], [limiter.plans.now(), *fields])
    found = limiter.store.run(call)
    return [packed and "; ".join(map(str, definitions.unpack(packed))) for packed in found]


def changes(limiter: Limiter) -> list[tuple[str, ...]]:
    """The change log, oldest first: action, limit, old and new."""
    with redis.Redis.from_url(limiter.store.url) as client:
        rows: Any = client.xrange(limiter.keys.changes)
    names = (b"action", b"limit", b"old", b"new")
    return [tuple(row[name].decode() for name in names) for _, row in rows]


def test_a_file_replaces_the_one_before_and_leaves_the_code_behind(limiter: Limiter) -> None:
    limiter.register()
    assert apply_rules(limiter, rules(code="2/s burst 2", a="3/s burst 3", a__x="4/s burst 4"), "f")
    assert used_up(limiter, "code") == 2
    assert used_up(limiter, "a", "x") == 4
    assert used_up(limiter, "a", "y") == 3
    assert apply_rules(limiter, rules(b="5/s burst 5"), "f")
    assert texts_in_force(limiter, "code", "a", "a:x", "b") == ["1/s", None, None, "5/s burst 5"]


def test_rules_in_memory(limiter: Limiter) -> None:
    memory = Limiter("memory://", {"code": "1/h"}, clock=limiter.clock)
    apply_rules(memory, rules(code="2/h burst 2", a="3/h burst 3", a__x="4/h burst 4"), "f")
    memory["a"].define("5/h burst 5")
    assert apply_rules(memory, rules(a="6/h burst 6"), "f")
    assert used_up(memory, "code") == 1
    assert used_up(memory, "a", "x") == 5
    memory["a"].undefine()
    assert memory.peek(["a"]).burst == 6


def test_units_in_use_stay_in_use(limiter: Limiter) -> None:
    apply_rules(limiter, rules(a="100/h burst 100", a__x="200/h burst 200"), "f")
    limiter.try_acquire([limiter["a", "x"]], 90)
    apply_rules(limiter, rules(a="100/h burst 120"), "f")
    assert limiter.peek([limiter["a", "x"]]).remaining == 30


def test_what_was_set_at_run_time_stays_until_it_ends(limiter: Limiter) -> None:
    apply_rules(limiter, rules(a="1/s", b="1/s"), "f")
    limiter["a"].define("7/s")
    limiter["b"].define("7/s", lasts=60)
    apply_rules(limiter, rules(a="2/s", b="2/s"), "f")
    assert texts_in_force(limiter, "a", "b") == ["7/s", "7/s"]
    assert limiter.clock is not None
    limiter.clock.advance(61)
    assert texts_in_force(limiter, "a", "b") == ["7/s", "2/s"]
    limiter["a"].undefine()
    assert texts_in_force(limiter, "a") == ["2/s"]


def test_each_change_of_the_rules_is_logged(limiter: Limiter) -> None:
    apply_rules(limiter, rules(a="1/s", b="1/s", c="3/s"), "f", by="ann")
    apply_rules(limiter, rules(a="1/sec", b="2/s", b__x="9/s"), "f", by="ann")
    first, second = changes(limiter)[:3], changes(limiter)[3:]
    assert first == [
        ("rules", "a", "", "1/s"),
        ("rules", "b", "", "1/s"),
        ("rules", "c", "", "3/s"),
    ]
    assert second == [
        ("rules", "b:x", "", "9/s"),
        ("rules", "b", "1/s", "2/s"),
        ("rules", "c", "3/s", ""),
    ]


@pytest.mark.parametrize("name", ["rate", "rate__x"])
def test_a_switch_to_slots_is_refused_and_changes_nothing(limiter: Limiter, name: str) -> None:
    apply_rules(limiter, rules(rate="1/s", other="1/s"), "f")
    before = len(changes(limiter))
    field = name.replace("__", ":")
    with pytest.raises(RulesError, match=f"f: limit '{field}' cannot become '3 at once'"):
        apply_rules(limiter, rules(other="2/s", **{name: "3 at once"}), "f")
    assert texts_in_force(limiter, "rate", "other") == ["1/s", "1/s"]
    assert len(changes(limiter)) == before


def test_the_newest_file_wins(limiter: Limiter) -> None:
    def apply(text: str, modified: float | None) -> bool:
        return apply_rules(limiter, rules(a=text), "f", modified=modified)

    now = START / SECOND
    assert apply("1/s", now - 50)
    assert not apply("2/s", now - 60)
    assert apply("1/s", now - 60)  # the same rules
    assert apply("3/s", now - 40)
    assert apply("4/s", None)
    assert not apply("3/s", now - 40)
    assert apply("5/s", now + 1000)  # by a clock that is fast
    assert apply("6/s", now)
    assert texts_in_force(limiter, "a") == ["6/s"]


def test_a_report_says_which_rules_are_in_force(limiter: Limiter) -> None:
    def report(known: str = "") -> tuple[RulesVersion | None, Rules | None]:
        return limiter.run_plan(report_rules(limiter.plans, "w", "{}", known, 30))

    assert report() == (None, None)
    own = read_rules('[limits]\na = "1/s"\n[weights]\na = 2\n[routes]\n"t.*" = "a"', "f")
    apply_rules(limiter, own, "/etc/limits.toml", modified=5, by="ann", reason="slower")
    version, found = report()
    assert version is not None
    assert version.source == "/etc/limits.toml"
    assert (version.modified, version.applied) == (5_000_000, START)
    assert (version.author.by, version.author.reason) == ("ann", "slower")
    assert found == own
    assert found.routes == {"t.*": Route(("a",))}
    assert report(own.digest) == (version, None)


@dataclass
class Model:
    """What each layer says. Times are seconds."""

    now: float = 0
    code: dict[LimitRef, Limits] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)
    set: dict[LimitRef, tuple[Limits, float]] = field(default_factory=dict)
    weights: dict[LimitRef, tuple[int, float]] = field(default_factory=dict)

    def limits(self, ref: LimitRef) -> Limits | None:
        limits, ends = self.set.get(ref, (None, 0.0))
        if limits is not None and ends > self.now:
            return limits
        return self.rules.limits.get(ref, self.code.get(ref))

    def weight(self, ref: LimitRef) -> int | None:
        weight, ends = self.weights.get(ref, (None, 0.0))
        return weight if weight is not None and ends > self.now else self.rules.weights.get(ref)


REFS = [LimitRef(name, key) for name in ("a", "b") for key in (None, "x", "y")]
_refs = st.sampled_from(REFS)
_limits = st.sampled_from(["1/s", "2/s", "60/m", "5/m burst 3", "9/h using sliding-log"])
_lasts = st.sampled_from([None, 5.0, 60.0])
_tables = st.dictionaries(_refs, _limits, max_size=4)
_weights = st.dictionaries(_refs, st.integers(1, 3), max_size=3)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("apply"), _tables, _weights),
        st.tuples(st.just("define"), _refs, _limits, _lasts),
        st.tuples(st.just("weigh"), _refs, st.integers(1, 3), _lasts),
        st.tuples(st.just("undefine"), _refs),
        st.tuples(st.just("register"), st.dictionaries(st.sampled_from("ab"), _limits)),
        st.tuples(st.just("wait"), st.sampled_from([1.0, 10.0, 100.0])),
        st.tuples(st.just("take"), _refs),
    ),
    max_size=12,
)


class Both:
    """A limiter and the model of its layers."""

    def __init__(self, url: str) -> None:
        self.clock = ManualClock(START)
        self.limiter = Limiter(url, clock=self.clock)
        self.model = Model()

    def apply(self, limits: Mapping[LimitRef, str], weights: Mapping[LimitRef, int]) -> None:
        parsed = {ref: parse_limits(text, ref.name) for ref, text in limits.items()}
        self.model.rules = Rules(parsed, weights)
        assert apply_rules(self.limiter, self.model.rules, "limits.toml")

    def define(self, ref: LimitRef, text: str, lasts: float | None) -> None:
        if self.knows(ref):
            self.limiter[ref].define(text, lasts=lasts)
            self.model.set[ref] = parse_limits(text, ref.name), self.ends(lasts)

    def weigh(self, ref: LimitRef, weight: int, lasts: float | None) -> None:
        if self.knows(ref, whole=True):
            self.limiter[ref].define(weight=weight, lasts=lasts)
            self.model.weights[ref] = weight, self.ends(lasts)

    def undefine(self, ref: LimitRef) -> None:
        if self.knows(ref, whole=True):
            self.limiter[ref].undefine()
            in_force = self.model.limits(ref)
            weighed = ref in self.model.weights or ref in self.model.rules.weights
            if in_force is self.model.code.get(ref) and not weighed:
                self.model.code.pop(ref, None)
            self.model.set.pop(ref, None)
            self.model.weights.pop(ref, None)

    def register(self, limits: Mapping[str, str]) -> None:
        parsed = parse_definitions(limits)
        self.limiter.run_plan(self.limiter.plans.register(parsed))
        self.model.code.update({LimitRef(name, None): own for name, own in parsed.items()})

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.model.now += seconds

    def take(self, ref: LimitRef) -> None:
        if self.model.limits(ref) or self.model.limits(LimitRef(ref.name, None)):
            self.limiter.try_acquire([ref if ref.key else ref.name])

    def knows(self, ref: LimitRef, *, whole: bool = False) -> bool:
        """Whether a key, or a weight, of the limit may be defined."""
        if ref.key is None and not whole:
            return True
        names = {ref, LimitRef(ref.name, None)}
        return any(self.model.limits(one) for one in names)

    def ends(self, lasts: float | None) -> float:
        return float("inf") if lasts is None else self.model.now + lasts

    def compare(self, client: Any) -> None:
        limiter, model = self.limiter, self.model
        keys = limiter.keys
        for ref in REFS:
            own = model.limits(ref)
            text = own and "; ".join(map(str, own))
            assert texts_in_force(limiter, keys.field(ref)) == [text], ref
            assert self.weight(client, ref) == model.weight(ref), ref
            if ref.key is None:
                assert own is None or client.sismember(keys.names, ref.name)
            elif own or model.weight(ref):
                assert client.zscore(keys.own_keys(ref.name), ref.key) is not None

    def weight(self, client: Any, ref: LimitRef) -> int | None:
        """The weight in force, as `records.lua` reads it."""
        found = client.hget(self.limiter.keys.limits, f"weight {self.limiter.keys.field(ref)}")
        own, ends, rules = map(int, (found or b"0 0 0").split())
        is_set = own and not 0 < ends <= self.clock.now
        return (own if is_set else rules) or None


@given(_steps)
def test_what_is_in_force_is_what_a_model_of_the_layers_says(
    server_url: str, steps: list[tuple[Any, ...]]
) -> None:
    with redis.Redis.from_url(server_url) as client:
        client.flushdb()
        both = Both(server_url)
        for name, *arguments in steps:
            step: Callable[..., None] = getattr(both, name)
            step(*arguments)
            both.compare(client)
        client.flushdb()


# Files that are put in force in parts.


@dataclass
class Application:
    """A file that is put in force step by step, while others are."""

    limiter: Limiter
    file: FileRules
    outcome: Applied | None = None

    def __post_init__(self) -> None:
        self.plan = self.limiter.plans.apply_rules(self.file)
        self.reply: Any = None

    def step(self) -> bool:
        """Make one call; return whether there are more."""
        try:
            call: Any = self.plan.send(self.reply)
            self.reply = self.limiter.store.run(call)
        except StopIteration as end:
            self.outcome = end.value
        return self.outcome is None

    def run(self) -> Applied:
        while self.step():
            pass
        assert self.outcome is not None
        return self.outcome


def file_of(rules: Rules, modified: int) -> FileRules:
    return FileRules(rules, "limits.toml", modified)


FILES = (
    rules(a="1/s", b="1/s", c__x="1/s", d="1/s", e="1/s"),
    rules(a="2/s", b__x="2/s", b__y="2/s", c="2/s", c__x="2/s", d__x="2/s"),
    rules(b="3/s", c__y="3/s", d="3/s", d__x="3/s", e="3/s", f="3/s"),
)
FIELDS = [field for name in "abcdef" for field in (name, f"{name}:x", f"{name}:y")]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_throttle.operations.rules.PART_SIZE", 2)


def in_force(limiter: Limiter, found: Rules) -> list[str | None]:
    """What a file has in force when it is applied alone."""
    limits = {limiter.keys.field(ref): limits for ref, limits in found.limits.items()}
    return ["; ".join(map(str, limits[field])) if field in limits else None for field in FIELDS]


def effective(texts: list[str | None]) -> dict[str, str | None]:
    """The limit that each name and key goes by."""
    found = dict(zip(FIELDS, texts, strict=True))
    return {field: text or found[field[0]] for field, text in found.items()}


@pytest.mark.thorough
def test_a_large_file_is_put_in_force_in_parts(limiter: Limiter) -> None:
    """No call changes more than 200 of its limits and weights."""
    many = {f"n{number // 2}{'__x' * (number % 2)}": "5/s" for number in range(900)}
    found = rules(**many)
    application = Application(limiter, file_of(found, START))
    lengths = []
    while application.step():
        lengths.append(len(changes(limiter)))
    assert application.outcome == Applied(accepted=True, modified=START)
    assert lengths[-1] == 900
    assert max(after - before for before, after in itertools.pairwise(lengths)) == 200
    assert apply_rules(limiter, rules(a="1/s"), "f")
    assert texts_in_force(limiter, "n0", "n449:x", "a") == [None, None, "1/s"]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(("old", "new"), [*itertools.permutations(FILES, 2)])
def test_each_key_has_its_limit_of_one_of_two_files_at_any_time(
    limiter: Limiter, old: Rules, new: Rules
) -> None:
    assert apply_rules(limiter, old, "f")
    before, after = (effective(in_force(limiter, file)) for file in (old, new))
    application = Application(limiter, file_of(new, START))
    while application.step():
        now = effective(texts_in_force(limiter, *FIELDS))
        assert all(now[field] in (before[field], after[field]) for field in FIELDS)
    assert effective(texts_in_force(limiter, *FIELDS)) == after


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("steps", range(4, 12))
def test_another_worker_completes_a_file_whose_worker_died(limiter: Limiter, steps: int) -> None:
    apply_rules(limiter, FILES[0], "f", modified=START / SECOND - 60)
    dead = Application(limiter, file_of(FILES[1], START))
    for _ in range(steps):
        dead.step()
    older = Application(limiter, file_of(FILES[0], START - 60 * SECOND))
    started = "next" in fields_of_rules(limiter)
    assert started == (not older.run().accepted)
    assert Application(limiter, file_of(FILES[1], START)).run().accepted
    assert texts_in_force(limiter, *FIELDS) == in_force(limiter, FILES[1])
    assert "next" not in fields_of_rules(limiter)


def fields_of_rules(limiter: Limiter) -> list[str]:
    with redis.Redis.from_url(limiter.store.url) as client:
        names: Any = client.hkeys(limiter.keys.rules)
    return [name.decode() for name in names]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("seed", range(40))
def test_of_files_at_once_the_newest_is_in_force(limiter: Limiter, seed: int) -> None:
    """Two workers with one file help each other; of two of the same time one wins."""
    dice = random.Random(seed)
    ages = [dice.choice([0, 0, 1, 2]) for _ in range(4)]
    choices = [dice.randrange(3) for _ in range(4)]
    running = [
        Application(limiter, file_of(FILES[choice], START - age))
        for choice, age in zip(choices, ages, strict=True)
    ]
    alive = list(running)
    for _ in range(2000):
        if not alive:
            break
        one = dice.choice(alive)
        if not one.step():
            alive.remove(one)
    assert not alive, "each ends"
    newest = {choice for choice, age in zip(choices, ages, strict=True) if age == min(ages)}
    found = texts_in_force(limiter, *FIELDS)
    assert found in [in_force(limiter, FILES[choice]) for choice in newest]
    assert "next" not in fields_of_rules(limiter)


@pytest.mark.usefixtures("small_parts")
def test_a_refused_file_changes_nothing_in_any_part(limiter: Limiter) -> None:
    apply_rules(limiter, FILES[0], "f")
    with pytest.raises(RulesError, match="limit 'e' cannot become '3 at once'"):
        apply_rules(limiter, rules(a="9/s", b="9/s", c="9/s", d="9/s", e="3 at once"), "f")
    assert texts_in_force(limiter, *FIELDS) == in_force(limiter, FILES[0])
    assert "next" not in fields_of_rules(limiter)
