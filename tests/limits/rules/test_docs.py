"""The examples in docs/how-to/rules.md are read as the page says."""

from __future__ import annotations

import re
from uuid import UUID

import pytest

from celery_throttle.errors import RulesError
from celery_throttle.limits.key import LimitRef, encode_key, parse_key
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rules.reader import read_rules
from celery_throttle.limits.rules.rules import Route
from tests.docs import pages

PAGE = pages.read("how-to/rules.md")
EXAMPLE, WRONG = re.findall(r"^```toml\n((?:.*\n)*?)```", PAGE, re.MULTILINE)
MESSAGES, _LOG = re.findall(r"^```text\n((?:.*\n)*?)```", PAGE, re.MULTILINE)


def test_the_example_has_no_mistake() -> None:
    rules = read_rules(EXAMPLE, "limits.toml", {})
    assert rules.limits[LimitRef("mail", None)] == (Limit.parse("10/m"),)
    assert rules.limits[LimitRef("mail", "42:eu")] == (Limit.parse("1/s"),)
    assert len(rules.limits) == 6
    assert rules.weights == {LimitRef("mail", None): 2, LimitRef("mail", "gold"): 5}
    assert rules.routes == {
        "shop.tasks.charge": Route(("stripe",)),
        "shop.mail.*": Route(("mail:{tenant_id}", "openai")),
        "shop.tasks.summarize": Route(("openai",), "{requests}"),
        "shop.tasks.send_all": Route(("mail", "stripe"), {"mail": "len({recipients})"}),
    }


def test_the_mistakes_are_those_on_the_page() -> None:
    with pytest.raises(RulesError) as caught:
        read_rules(WRONG, "limits.toml", {})
    assert f"{caught.value}\n" == MESSAGES


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("São Paulo", "São Paulo"),
        ("42", 42),
        ("a%3Ab", "a:b"),
        ("100%25", "100%"),
        ("!uuid=6f1c1d0e-0a3b-4a53-9f0e-1c4f3a5d2b7e", UUID("6f1c1d0e0a3b4a539f0e1c4f3a5d2b7e")),
        ("!float=1.5", 1.5),
        ("!none", None),
        ("!empty", ""),
    ],
)
def test_keys_are_those_on_the_page(written: str, value: object) -> None:
    assert f'"mail:{written}"' in PAGE
    assert parse_key(written) == encode_key(value)
