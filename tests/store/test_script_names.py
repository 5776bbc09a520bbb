"""The names in the Lua scripts: nothing checks them before a script runs."""

from __future__ import annotations

from functools import cache

import pytest

from celery_throttle.store.script import library, script
from tests.lua_names import Names, resolve, script_names

#: What the server provides to scripts.
GLOBALS = {
    *("KEYS", "ARGV", "redis", "cjson", "cmsgpack", "struct", "math", "string", "table"),
    *("ipairs", "next", "pairs", "pcall", "select", "tonumber", "type", "unpack"),
}


@cache
def names_in(name: str) -> Names:
    return resolve(script(name).source.decode())


@pytest.mark.parametrize("name", script_names())
def test_each_name_is_declared_once_before_it_is_used(name: str) -> None:
    names = names_in(name)
    assert names.undefined <= GLOBALS
    assert names.shadows == set()


def test_each_part_of_the_library_is_used() -> None:
    used = set().union(*(names_in(name).used for name in script_names()))
    assert set(library().parts) <= used


@pytest.mark.parametrize("name", script_names())
def test_a_call_has_one_time(name: str) -> None:
    assert script(name).source.count(b"local now = ") <= 1
