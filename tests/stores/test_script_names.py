"""The names in the Lua scripts: nothing checks them before a script runs."""

from __future__ import annotations

import re

import pytest

from celery_throttle.store.script import include_names, script, script_names, source_of
from tests.lua_names import resolve

#: What the server provides to scripts.
GLOBALS = {
    *("KEYS", "ARGV", "redis", "cmsgpack", "struct", "math", "string", "table"),
    *("ipairs", "next", "pairs", "select", "tonumber", "type", "unpack"),
}


@pytest.mark.parametrize("name", script_names())
def test_each_name_is_declared_once_before_it_is_used(name: str) -> None:
    names = resolve(script(name).source.decode())
    assert names.undefined <= GLOBALS
    assert names.shadows == set()


@pytest.mark.parametrize("name", script_names())
def test_a_script_uses_each_file_that_it_includes(name: str) -> None:
    source = script(name).source.decode()
    used = resolve(source).used
    for include in include_names():
        if f"\n-- {include}.lua: " in source and (text := source_of(include)):
            declared = re.findall(r"^local (?:function )?(\w+(?:, \w+)*)", text, re.MULTILINE)
            assert {include, *", ".join(declared).split(", ")} & used, include
