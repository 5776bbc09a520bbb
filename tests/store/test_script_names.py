"""The names in the Lua scripts: nothing checks them before a script runs."""

from __future__ import annotations

import re

import pytest

from celery_throttle.store.script import source_of, source_with_includes
from tests.lua_names import include_names, resolve, script_names

#: What the server provides to scripts.
GLOBALS = {
    *("KEYS", "ARGV", "redis", "cjson", "cmsgpack", "struct", "math", "string", "table"),
    *("ipairs", "next", "pairs", "pcall", "select", "tonumber", "type", "unpack"),
}


@pytest.mark.parametrize("name", script_names())
def test_each_name_is_declared_once_before_it_is_used(name: str) -> None:
    names = resolve(source_with_includes(name))
    assert names.undefined <= GLOBALS
    assert names.shadows == set()


@pytest.mark.parametrize("name", script_names())
def test_a_script_uses_each_file_that_it_includes(name: str) -> None:
    source = source_with_includes(name)
    used = resolve(source).used
    for include in include_names():
        declared = re.findall(
            r"^local (?:function )?(\w+(?:, \w+)*)", source_of(include), re.MULTILINE
        )
        if declared and f"\n-- {include}.lua: " in f"\n{source}":
            assert {include, *", ".join(declared).split(", ")} & used, include


@pytest.mark.parametrize("name", script_names())
def test_a_call_has_one_time(name: str) -> None:
    assert source_with_includes(name).count("local now = ") <= 1
