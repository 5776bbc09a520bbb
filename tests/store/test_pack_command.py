"""Commands as they are sent to a server."""

from __future__ import annotations

from enum import IntEnum

import hiredis
from hypothesis import example, given
from hypothesis import strategies as st

from celery_throttle.store.script import Argument, pack_command

#: Texts with lone surrogates, too, as names of files may have them.
TEXT = st.text(st.characters(exclude_categories=()))


class Size(IntEnum):
    LARGE = 3


@given(st.lists(TEXT | st.binary() | st.integers() | st.floats(), min_size=1))
@example(["\udc80", b"\xff\r\n", 2**64])
@example(["INCRBY", "key", Size.LARGE])
def test_a_server_reads_each_part_as_it_was_given(parts: list[Argument]) -> None:
    reader = hiredis.Reader()
    reader.feed(pack_command(*parts))
    given_parts = [
        part if isinstance(part, bytes) else format(part).encode("utf-8", "surrogatepass")
        for part in parts
    ]
    assert reader.gets() == given_parts
    assert reader.gets() is False  # nothing is left
