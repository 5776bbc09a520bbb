"""The lines of the keys and items of a TOML document."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_throttle.limits.rules.toml import Path, TomlError, find_lines, parse_toml
from tests.sizes import examples

DOCUMENT = '''# "no.key" = 1
a.b . "c.d" = 1  # [e]

['quoted # [x]'."\\u00e9\\"]"]
text = """
not.a.key = 1
""""" # two of the quotes belong to the text
other = \'\'\'
x = [1
\'\'\'\'
list = [ # {
  "]", 1979-05-27 07:32:00.5, [1,
    2], { in = 1, "l.i".ne = [
      3] },

  # 5
  1.5e3, ]
"after, =" = 'it = {}'

[[ tables . of ]]
x = 1
[[tables.of]]
x = 2
[tables.of.last]
y = -inf
[a.late]
'''

LINES = {
    ("a",): 2,
    ("a", "b"): 2,
    ("a", "b", "c.d"): 2,
    ("quoted # [x]",): 4,
    ("quoted # [x]", 'é"]'): 4,
    ("quoted # [x]", 'é"]', "text"): 5,
    ("quoted # [x]", 'é"]', "other"): 8,
    ("quoted # [x]", 'é"]', "list"): 11,
    ("quoted # [x]", 'é"]', "list", 0): 12,
    ("quoted # [x]", 'é"]', "list", 1): 12,
    ("quoted # [x]", 'é"]', "list", 2): 12,
    ("quoted # [x]", 'é"]', "list", 2, 0): 12,
    ("quoted # [x]", 'é"]', "list", 2, 1): 13,
    ("quoted # [x]", 'é"]', "list", 3): 13,
    ("quoted # [x]", 'é"]', "list", 3, "in"): 13,
    ("quoted # [x]", 'é"]', "list", 3, "l.i"): 13,
    ("quoted # [x]", 'é"]', "list", 3, "l.i", "ne"): 13,
    ("quoted # [x]", 'é"]', "list", 3, "l.i", "ne", 0): 14,
    ("quoted # [x]", 'é"]', "list", 4): 17,
    ("quoted # [x]", 'é"]', "after, ="): 18,
    ("tables",): 20,
    ("tables", "of"): 20,
    ("tables", "of", 0): 20,
    ("tables", "of", 0, "x"): 21,
    ("tables", "of", 1): 22,
    ("tables", "of", 1, "x"): 23,
    ("tables", "of", 1, "last"): 24,
    ("tables", "of", 1, "last", "y"): 25,
    ("a", "late"): 26,
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_lines_of_all_keys_and_items(newline: str) -> None:
    assert find_lines(DOCUMENT.replace("\n", newline)) == LINES


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the paths of all values within a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, (dict, list)):
            yield from paths(inner, (*path, key))


def test_each_path_of_the_document_has_a_line() -> None:
    assert set(find_lines(DOCUMENT)) == set(paths(parse_toml(DOCUMENT)))


TOKENS = st.sampled_from(
    [
        *(
            "a",
            "b-1",
            "'a.b'",
            '"q\\"#"',
            "''",
            "1",
            "1.5",
            "true",
            "'x'",
            '"""\n"a"""',
            "'''\n'''",
        ),
        *("=", " = 1\n", "='y' # c\n", ".", ",", "\n", "\r\n", " ", "# c [\n"),
        *("[", "]", "\n[a]\n", "\n[[c]]\n", "{", "}", "{x = 1}", "[1,\n2]"),
    ]
)


@settings(max_examples=examples(10_000))
@given(st.lists(TOKENS, max_size=12).map("".join) | st.text("a=1'[]{}.,#\n\r\t\f\v \\\""))
def test_what_can_be_parsed_has_a_line_for_each_path(document: str) -> None:
    try:
        parsed = parse_toml(document)
    except TomlError as error:
        assert error.line is None or 1 <= error.line <= document.count("\n") + 1  # noqa: PT017
        return
    lines = find_lines(document)
    assert set(lines) == set(paths(parsed))
    texts = document.split("\n")
    for (*_, key), line in lines.items():
        if isinstance(key, str) and re.fullmatch(r"[\w.-]+", key):
            assert key in texts[line - 1]
