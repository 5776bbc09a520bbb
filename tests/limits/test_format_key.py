"""Keys as people write them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_throttle.limits.key import encode_key, format_key, parse_key

PARTS = st.one_of(st.text(), st.integers(), st.none(), st.booleans(), st.binary(), st.floats())


@given(PARTS | st.lists(PARTS, min_size=1, max_size=3).map(tuple))
def test_a_formatted_key_is_parsed_to_the_same(value: Any) -> None:
    key = encode_key(value)
    assert parse_key(format_key(key)) == key
    assert format_key(key).isprintable()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("t7", "t7"),
        (42, "42"),
        ("São Paulo", "São Paulo"),
        (("eu", "a b"), "eu:a b"),
        ("a:b", "a%3Ab"),
        ("100%", "100%25"),
        ("a\nb", "a%0Ab"),
        ("!none", "%21none"),
        (None, "!none"),
        (1.5, "!float=1.5"),
    ],
)
def test_what_people_read(value: Any, text: str) -> None:
    assert format_key(encode_key(value)) == text
