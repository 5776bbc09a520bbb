"""Shards: which limits each has, and which shard has a key."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_throttle.errors import ConfigurationError
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.shards import HOME_SHARD, Shard, ShardMap, parse_shards

WRITTEN = {
    "mail": {"limits": ["mail", "mail-*"]},
    "tenants": {"limits": ["tenant", "user"], "by_key": 16},
    "erp": {"limits": ["erp"], "url": "redis://:secret@erp-limits:6379/0"},
}

_texts = st.text("ab", max_size=5)
_patterns = st.text("ab*", min_size=1, max_size=6)


def match(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern.replace("*", "[ab]*"), text) is not None


def shard_of(shards: ShardMap, name: str, key: str | None = None) -> str:
    return str(shards.shard_of(LimitRef(name, key)))


def test_a_limit_is_in_the_shard_that_names_it_or_else_at_home() -> None:
    shards = parse_shards(WRITTEN)
    names = ("mail", "mail-eu", "mails", "erp", "stripe")
    found = [shard_of(shards, name) for name in names]
    assert found == ["mail", "mail", "home", "erp", "home"]
    assert shard_of(ShardMap(), "mail") == "home"
    assert shard_of(shards, "mail", "42") == "mail"


def test_keys_are_divided_evenly_and_by_the_key_alone() -> None:
    shards = parse_shards(WRITTEN)
    keys = [str(number) for number in range(16_000)]
    found = Counter(shard_of(shards, "tenant", key) for key in keys)
    assert set(found) == {f"tenants/{number}" for number in range(16)}
    assert max(found.values()) < 1.15 * 1000
    assert min(found.values()) > 0.85 * 1000
    assert all(shard_of(shards, "tenant", key) == shard_of(shards, "user", key) for key in keys)


def test_the_shard_of_a_key_is_the_same_in_every_process_and_version() -> None:
    shards = parse_shards(WRITTEN)
    found = [shard_of(shards, "tenant", key) for key in ("1", "2", "42", "%C3%A9", "a:b")]
    assert found == PINNED


PINNED = ["tenants/6", "tenants/12", "tenants/10", "tenants/7", "tenants/7"]


def test_a_limit_that_is_divided_by_key_needs_a_key() -> None:
    with pytest.raises(ConfigurationError, match=r"'tenant' is in shard 'tenants'.*name a key"):
        parse_shards(WRITTEN).shard_of(LimitRef("tenant", None))


def test_all_limits_of_a_call_are_in_one_shard() -> None:
    shards = parse_shards(WRITTEN)
    mail, eu, home = LimitRef("mail", None), LimitRef("mail-eu", "7"), LimitRef("stripe", None)
    assert shards.shard_of_all([mail, eu]) == Shard("mail")
    assert shards.shard_of_all([home]) == HOME_SHARD
    assert shards.shard_of_all([]) == HOME_SHARD
    message = (
        r"limits of two shards: 'mail' in shard 'mail' and 'stripe' in shard 'home'; .*name both in"
        r" the same entry of throttle_shards, or in none, or use them in two calls"
    )
    with pytest.raises(ConfigurationError, match=message):
        shards.shard_of_all([mail, eu, home])


def test_two_keys_in_two_shards_of_one_entry_are_an_error_too() -> None:
    shards = parse_shards(WRITTEN)
    same = [LimitRef("tenant", "42"), LimitRef("user", "42")]
    assert shards.shard_of_all(same) == shards.shard_of(same[0])
    message = r"'tenant:1' in shard 'tenants/\d+' and 'user:2' in shard 'tenants/\d+'; .* same key"
    with pytest.raises(ConfigurationError, match=message):
        shards.shard_of_all([LimitRef("tenant", "1"), LimitRef("user", "2")])


def test_where_a_limit_really_is_takes_precedence_over_the_settings() -> None:
    shards = replace(
        parse_shards(WRITTEN), assigned={"mail": "home", "stripe": "mail", "x": "other"}
    )
    assert [shard_of(shards, name) for name in ("mail", "stripe", "erp")] == ["home", "mail", "erp"]
    with pytest.raises(ConfigurationError, match="'x' is in shard 'other', where other processes"):
        shard_of(shards, "x")


@given(_patterns, _patterns, st.lists(_texts, max_size=30))
def test_no_name_is_in_two_shards(one: str, other: str, texts: list[str]) -> None:
    entries = {"one": {"limits": [one]}, "other": {"limits": [other]}}
    common = [text for text in texts if match(one, text) and match(other, text)]
    with suppress(ConfigurationError):
        shards = parse_shards(entries)
        assert not common
        assert all(match(one, text) == (shard_of(shards, text) == "one") for text in texts)


@given(_patterns, st.lists(_texts, min_size=6, max_size=6))
def test_a_pattern_overlaps_with_each_name_that_it_matches(pattern: str, texts: list[str]) -> None:
    fill = iter(texts)
    name = re.sub(r"\*", lambda _: next(fill), pattern)
    if name:
        with pytest.raises(ConfigurationError, match="would be in two shards"):
            parse_shards({"one": {"limits": [pattern]}, "other": {"limits": [name]}})


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (["mail"], r"throttle_shards is \['mail'\]; allowed: a dict such as"),
        ({"a b": {"limits": ["x"]}}, r"throttle_shards\['a b'\]: 'a b' cannot name"),
        ({"home": {"limits": ["x"]}}, "the home shard has all other limits; leave it out"),
        ({"mail": ["mail"]}, r"throttle_shards\['mail'\] is \['mail'\]; allowed: a dict"),
        ({"mail": {}}, "has limits None; allowed: a list of names or patterns"),
        ({"mail": {"limits": "mail"}}, "has limits 'mail'; allowed: a list"),
        ({"mail": {"limits": ["mail:{id}"]}}, "has the limit 'mail:{id}'; allowed: the name"),
        ({"mail": {"limits": [["mail"]]}}, r"has the limit \['mail'\]; allowed: the name"),
        ({"mail": {"limits": ["mail"], "keys": 3}}, "has 'keys'; allowed: 'limits', 'by_key'"),
        ({"mail": {"limits": ["mail"], "by_key": 0}}, "by_key 0; allowed: a whole number from 1"),
        ({"mail": {"limits": ["mail"], "by_key": True}}, "has by_key True; allowed"),
        ({"mail": {"limits": ["mail"], "url": 7}}, "has url 7; allowed: the URL of a server"),
    ],
)
def test_an_error_names_the_text_and_what_is_allowed(written: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_shards(written)


def test_patterns_of_one_entry_may_overlap() -> None:
    assert shard_of(parse_shards({"mail": {"limits": ["mail", "mail*"]}}), "mail") == "mail"


def test_no_password_is_shown() -> None:
    assert "secret" not in repr(parse_shards(WRITTEN))
