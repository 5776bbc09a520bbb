"""Rules files are read as written, and each mistake is reported with its line."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_throttle.errors import RulesError
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit, Limits
from celery_throttle.limits.requirement import parse_definitions
from celery_throttle.limits.rules.reader import read_rules
from celery_throttle.limits.rules.rules import Route, Rules, dump_rules
from tests.limits.rules.generated import any_rules
from tests.sizes import examples

CODE = parse_definitions({"stripe": "100/s", "mail": "10/m", "github": "10 at once"})

FILE = """
# Limits of other people's APIs.
[limits]
stripe = "100/s burst 20"
openai = ["500/m", "200000/d"]
"api.v1" = '5/s'
"openai:gold" = [  # one key
  "5000/m",        # more of it
]
"mail:42:é" = "1/s"
"mail:!none" = "2/s"

[weights]
openai = 2
"mail:42" = 100

[routes]
"shop.tasks.charge" = "stripe"
"mail.*" = ["mail:{tenant_id}", "openai"]
"""


def parse(*texts: str) -> Limits:
    return tuple(map(Limit.parse, texts))


def mistakes(text: str, code: dict[str, Limits] | None = CODE) -> list[str]:
    """Return the mistakes of a file, each with its line."""
    with pytest.raises(RulesError) as caught:
        read_rules(text, "f", code)
    return [f"{line}: {message}" for line, message in caught.value.mistakes]


def test_a_file() -> None:
    rules = read_rules(FILE, "limits.toml", CODE)
    assert rules.limits == {
        LimitRef("stripe", None): parse("100/s burst 20"),
        LimitRef("openai", None): parse("500/m", "200000/d"),
        LimitRef("api.v1", None): parse("5/s"),
        LimitRef("openai", "gold"): parse("5000/m"),
        LimitRef("mail", "42:%C3%A9"): parse("1/s"),
        LimitRef("mail", "!none"): parse("2/s"),
    }
    assert rules.weights == {LimitRef("openai", None): 2, LimitRef("mail", "42"): 100}
    assert rules.routes == {
        "shop.tasks.charge": Route(("stripe",)),
        "mail.*": Route(("mail:{tenant_id}", "openai")),
    }


def test_a_comment_is_no_rules() -> None:
    assert read_rules("# none yet", "f", CODE) == Rules()


@pytest.mark.parametrize("text", ["", " \n\r\n"])
def test_an_empty_file_is_a_mistake(text: str) -> None:
    assert mistakes(text) == ["None: the file is empty; allowed, if it has no rules: a comment"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[limits]\nx = 100/s",
            "2: 'x = 100/s' is not TOML: Expected newline or end of document after a statement",
        ),
        (
            "[limits]\nx = '1/s'\ny = '''\n\n",
            "3: \"y = '''\" is not TOML: Expected \"'''\"",
        ),
        (
            "[limits]\nx = '1/s'\r\nx = '2/s'\r\n",
            "3: \"x = '2/s'\" is not TOML: Cannot overwrite a value; allowed: each name once",
        ),
        (
            "[routes]\n[limits]\n[routes]",
            "3: '[routes]' is not TOML: Cannot declare ('routes',) twice; allowed: each name once",
        ),
    ],
)
def test_text_that_is_not_toml(text: str, expected: str) -> None:
    advice = "" if "Cannot" in expected else '; allowed: rows such as stripe = "100/s"'
    assert mistakes(text) == [expected + advice]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n[limit]\na = 1", "2: 'limit' is not a table of rules; write 'limits'"),
        ("[throttle_routes]", "1: 'throttle_routes' is not a table of rules; write 'routes'"),
        (
            "# all\nstripe = '1/s'",
            "2: 'stripe' is not a table of rules; allowed: 'limits', 'routes', 'weights'",
        ),
        ("limits = '1/s'", "1: 'limits' is '1/s'; allowed: the table [limits]"),
        ("[[limits]]", "1: 'limits' is [{}]; allowed: the table [limits]"),
    ],
)
def test_a_wrong_table(text: str, expected: str) -> None:
    assert mistakes(text) == [expected]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("x = '10 per second'", "limit 'x': '10 per second' is not a rate; write '10/"),
        ("x = 5", "limit 'x': 5 is not a limit; allowed: '<count>/<period>', such as"),
        ("x = []", "'x' has 0 limits; allowed: 1 to 20"),
        ("x = {}", "limit 'x': {} is not a limit; allowed"),
        ("x = ['1 at once', '2 at once']", "['1 at once', '2 at once'] for 'x' has two numbers"),
        ("'9x' = '1/s'", "'9x' cannot name a limit; allowed"),
        ("'mail:' = '1/s'", "a part of key '' is empty; allowed"),
        ("'mail:{tenant}' = '1/s'", "'mail:{tenant}' has braces; allowed: the value of a key, su"),
        ("'mial:42' = '1/s'", "limit 'mial' is defined neither in this file nor in the code; w"),
        ("api.v1 = '1/s'", 'api.v1 has a dot, but no quotes; write "api.v1", or "api:v1" for a'),
        ("mail = '1 at once'", "limit 'mail' cannot become '1 at once': it cannot switch between"),
        ("'github:7' = '1/s'", "limit 'github:7' cannot become '1/s': it cannot switch between"),
    ],
)
def test_a_wrong_limit(row: str, expected: str) -> None:
    (mistake,) = mistakes(f"# comment\n[limits]\n{row}")
    assert mistake.startswith(f"3: {expected}")


@pytest.mark.parametrize("weight", ["0", "101", "1.0", "true", "'2'", "[2]"])
def test_a_wrong_weight(weight: str) -> None:
    (mistake,) = mistakes(f"[weights]\nmail = 100\n'mail:42' = {weight}")
    assert mistake.startswith("3: 'mail:42': weight ")
    assert mistake.endswith("is out of range; allowed: whole numbers from 1 to 100")


def test_a_weight_of_an_unknown_limit() -> None:
    assert mistakes("[weights]\nmial = 2") == [
        "2: limit 'mial' is defined neither in this file nor in the code; write 'mail'"
    ]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("'a' = 5", "route 'a': limits 5 cannot be read: give a name or a list of names"),
        ("'a' = []", "route 'a': [] names no limit; allowed: a name, or a list of names"),
        ("'a' = ['mail', 'mail']", "route 'a': ['mail', 'mail'] names the same limit twice"),
        ("a = {limits = 'mail', costs = 2}", "route 'a' has the key 'costs'; allowed: 'limits', "),
        ("'a.b' = {limit = 'mail'}", "route 'a.b' has the key 'limit'; allowed: 'limits', and"),
        ("'a.b' = {cost = 2}", "route 'a.b' has no 'limits'; allowed: 'limits', and 'cost'"),
        ("a = {limits = 'mail', cost = 0}", "route 'a': cost 0 is not allowed; allowed: a number"),
        ("a = {limits = 'mail', cost = '{b}c'}", "route 'a': cost '{b}c' is not allowed; allowed"),
        ("a = {limits = 'mail', cost = {x = 2}}", "route 'a': cost names 'x', which is no limit "),
        ("'a' = 'mail:{a'", "route 'a': '{a' in 'mail:{a' is not a part of a key; allowed: "),
        ("'a' = 'x'", "route 'a': limit 'x' is defined neither in this file nor in the code; al"),
        ("shop.charge = 'mail'", 'shop.charge has a dot, but no quotes; write "shop.charge"'),
    ],
)
def test_a_wrong_route(row: str, expected: str) -> None:
    (mistake,) = mistakes(f"[routes]\n\n{row}")
    assert mistake.startswith(f"3: {expected}")


def test_all_mistakes_at_once_each_in_its_line() -> None:
    found = mistakes("""
[routes]
"a" = [
  "stripe",
  "strip",  # 5
  "mail:{}",
]
[limits]
stripe = ["1/s", "2/t",
  "3/u"]
"stripe:%61" = "0/s"
"stripe:a" = "1/s"
new = "fast"
"new:1" = "1/s"
[weights]
"new:{b}" = 1000
""")
    assert [mistake[:24] for mistake in found] == [
        "5: route 'a': limit 'str",
        "6: route 'a': '{}' in 'm",
        "9: limit 'stripe': unkno",
        "10: limit 'stripe': unkn",
        "11: limit 'stripe:%61': ",
        "12: 'stripe:a' is the sa",
        "13: limit 'new': 'fast' ",
        "16: 'new:{b}' has braces",
        "16: 'new:{b}': weight 10",
    ]


def test_the_line_of_a_row_does_not_depend_on_later_texts() -> None:
    (mistake,) = mistakes('[limits]\nstripe = 5\n[routes]\n"None" = "stripe"')
    assert mistake.startswith("2: limit 'stripe': 5 is not a limit")


def test_keys_of_a_name_have_slots_if_the_name_has() -> None:
    for text in ("'x:1' = '1 at once'\nx = '1/s'", "x = '1/s'\n'x:1' = '1 at once'"):
        (mistake,) = mistakes(f"[limits]\n{text}", None)
        assert "limit 'x:1' cannot become '1 at once'" in mistake


def test_without_the_code_limits_that_the_file_does_not_define_may_exist() -> None:
    text = "[limits]\n'x:1' = '1/s'\n[weights]\ny = 2\n[routes]\nt = 'z'"
    assert len(mistakes(text, {})) == 3
    assert read_rules(text, "f").routes == {"t": Route(("z",))}


def test_the_error_has_a_line_for_each_mistake() -> None:
    with pytest.raises(RulesError) as caught:
        read_rules("[limit]\n[limits]\nx = 1", "limits.toml")
    one, two = str(caught.value).splitlines()
    assert one == "limits.toml:1: 'limit' is not a table of rules; write 'limits'"
    assert two.startswith("limits.toml:3: limit 'x': 1 is not a limit; allowed: ")


@pytest.mark.parametrize(
    "text",
    [
        f"x = {'[' * 9_999}",
        f"x = {'[' * 9_999}{']' * 9_999}",
        f"[limits]\n{'x.' * 9_999}x = '1/s'",
        f"[limits]\nx = {'9' * 9_999}\n# end",
    ],
    ids=["open", "lists", "tables", "number"],
)
def test_what_is_too_long_or_too_deep_is_a_mistake(text: str) -> None:
    (mistake,) = mistakes(text)
    assert mistake.startswith(("None: ", "2: x.x.x", "2: limit 'x': "))


VALUES = st.recursive(
    st.sampled_from(["'1/s'", "'x'", '"mail:{a}"', "'2 at once'", "5", "nan", "1979-05-27", "''"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.tuples(st.sampled_from("ab"), inner).map("{0[0]} = {0[1]}".format).map("{{{}}}".format)
    ),
    max_leaves=4,
)
KEYS = st.sampled_from(
    ["mail", "x", "a.b", "'mail:1'", "'mail:%31'", "'mail:{a}'", "'x:'", "''", "t.'*'.u", "9"]
)
ROWS = st.tuples(KEYS, VALUES).map(" = ".join) | st.sampled_from(
    ["[limits]", "[weights]", "[routes]", "[other]", "[limits.mail]", "[[limits.x]]", "[[routes]]"]
)


@settings(max_examples=examples(5_000))
@given(st.lists(ROWS, max_size=7).map("\n".join))
def test_any_file_is_read_or_has_mistakes(text: str) -> None:
    try:
        rules = read_rules(text, "f", CODE)
    except RulesError as error:
        for line, _ in error.mistakes:
            assert line is None or 1 <= line <= text.count("\n") + 1
    else:
        assert read_rules(dump_rules(rules.limits, rules.weights, rules.routes), "f") == rules


@settings(max_examples=examples(1_000))
@given(any_rules)
def test_what_is_dumped_reads_back(rules: Rules) -> None:
    text = dump_rules(rules.limits, rules.weights, rules.routes)
    read = read_rules(text, "f")
    assert read == rules
    assert (read.limits, read.weights, read.routes) == (rules.limits, rules.weights, rules.routes)
    assert dump_rules(read.limits, read.weights, read.routes) == text
