"""The changes between two sets of rules."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.rules.reader import read_rules
from celery_throttle.limits.rules.rules import RuleChange, Rules, diff_rules
from tests.limits.rules.generated import any_rules
from tests.sizes import examples

OLD = """
[limits]
stripe = "100/s burst 20"
mail = "1/s"
"mail:42" = "5/s"
openai = ["5/m", "2 at once"]
[weights]
mail = 2
"mail:42" = 3
[routes]
"a.*" = "stripe"
"b.*" = "stripe"
"c.*" = "stripe"
charge = "stripe"
"""

NEW = """
[routes]
charge = ["stripe"]
"c.*" = ["stripe", "mail:{x}"]
"a.*" = "stripe"
"d.*" = "stripe"
"b.*" = "stripe"
[weights]
"mail:42" = 4
"mail:a b" = 1
[limits]
"mail:42" = "5/second"  # the same
openai = ["5/m", "3 at once"]
stripe = ["100/s burst 20"]
zoom = "1/s"
"""


def test_each_kind_of_change() -> None:
    old, new = read_rules(OLD, "old"), read_rules(NEW, "new")
    changes = diff_rules(old, new)
    assert changes[0] == RuleChange("removed", "limit", LimitRef("mail", None), '"1/s"', None)
    assert [str(change) for change in changes] == [
        'limit mail removed: "1/s"',
        'limit openai changed: ["5/m", "2 at once"] -> ["5/m", "3 at once"]',
        'limit zoom added: "1/s"',
        "weight mail removed: 2",
        "weight mail:42 changed: 3 -> 4",
        "weight mail:a%20b added: 1",
        'route c.* changed: "stripe" -> ["stripe", "mail:{x}"]',
        'route d.* added: "stripe"',
        "route c.* moved: pattern 3 -> 1",
    ]


def test_the_order_of_names_does_not_count() -> None:
    one = read_rules("[routes]\na = 'x'\nb = 'x'\n[limits]\nx = '60/m'\ny = '1/s'", "one")
    two = read_rules("[limits]\n# c\ny = '1/1s'\nx = '60/min'\n[routes]\nb = ['x']\na = 'x'", "two")
    assert diff_rules(one, two) == ()
    assert one == two
    assert hash(one) == hash(two)
    assert one.digest == two.digest


@settings(max_examples=examples(500))
@given(any_rules, any_rules, st.randoms(use_true_random=False))
def test_no_changes_means_equal(one: Rules, two: Rules, random: Random) -> None:
    assert (diff_rules(one, two) == ()) is (one == two)
    routes = [*one.routes.items()]
    random.shuffle(routes)
    shuffled = Rules(one.limits, one.weights, dict(routes))
    changes = diff_rules(one, shuffled)
    assert {change.kind for change in changes} <= {"moved"}
    assert (changes == ()) is (one == shuffled)


@given(any_rules, any_rules)
def test_the_changes_back_are_the_opposite(one: Rules, two: Rules) -> None:
    opposite = {"added": "removed", "removed": "added", "changed": "changed"}
    there, back = (
        [change for change in changes if change.kind != "moved"]
        for changes in (diff_rules(one, two), diff_rules(two, one))
    )
    assert {(opposite[one.kind], one.what, one.subject, one.new, one.old) for one in there} == {
        (one.kind, one.what, one.subject, one.old, one.new) for one in back
    }
