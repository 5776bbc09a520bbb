"""Text and bytes of any kind: parsed, or refused with the documented error."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, cast

from hypothesis import example, given, settings
from hypothesis import strategies as st
from kombu.message import Message
from kombu.utils import json

from celery_throttle.errors import (
    KeyTemplateError,
    LimitError,
    LimitSyntaxError,
    LimitValueError,
    shown,
)
from celery_throttle.limits.duration import UNITS
from celery_throttle.limits.grammar import ALGORITHMS
from celery_throttle.limits.key import LimitRef, encode_key
from celery_throttle.limits.key_template import KeyTemplate
from celery_throttle.limits.limit import Limit
from celery_throttle.store import definitions
from celery_throttle.store.keys import Keys
from celery_throttle.tasks.messages import packing
from celery_throttle.tasks.messages.packing import UnreadableMessageError
from celery_throttle.worker.claim import Claim
from tests.algorithms.limits import any_rate, any_slots
from tests.sizes import examples

many = settings(max_examples=examples(2_000))


def assert_names(error: Exception, *texts: str) -> None:
    assert any(shown(text) in str(error) for text in texts)


@st.composite
def mutated(
    draw: st.DrawFn, originals: st.SearchStrategy[Any], pieces: st.SearchStrategy[Any]
) -> Any:
    """Text or bytes with some parts removed, doubled or replaced."""
    found = draw(originals)
    for _ in range(draw(st.integers(1, 4))):
        begin, end = sorted(draw(st.tuples(*[st.integers(0, len(found))] * 2)))
        piece = draw(st.one_of(st.just(found[:0]), st.just(found[begin:end] * 2), pieces))
        found = found[:begin] + piece + found[end:]
    return found


# The grammar of limits.

_NUMBERS = (
    *("0", "1", "007", "-1", "+1", "1_0", "1__0", "1.5", "1e9"),
    *("\u0663", "\u00b2", "9" * 40, "9" * 5000),
)
_MARKS = ("/", " ", "", ":", "\n", "\0", "\u2028", "{", "}", ";", "'", "\ud800", "\u017f", "\u0130")
_CLAUSES = (
    *("at once", "burst", "using", "from", "in", "at", "parts", "oldest", "outage", "max-keys"),
    *("max-waiting", "first-request", "epoch", "weighted", "dropped", "local", "open", "closed"),
    *("UTC", "Europe/Berlin", "../etc", "07:30", "24:00", "-1:00", "BURST", "At  Once", "none"),
)
_tokens = st.sampled_from([*_NUMBERS, *_MARKS, *_CLAUSES, *ALGORITHMS, *UNITS])
_limits = any_rate | any_slots
_texts = st.one_of(
    st.text(),
    st.lists(_tokens, max_size=12).map(" ".join),
    st.lists(_tokens, max_size=12).map("".join),
    mutated(_limits.map(str), st.text(max_size=3) | _tokens),
)


@many
@given(_texts)
def test_text_is_a_limit_or_refused_by_its_name(text: str) -> None:
    try:
        limit = Limit.parse(text)
    except (LimitSyntaxError, LimitValueError) as error:
        assert_names(error, text)
        return
    again = Limit.parse(str(limit))
    assert (again, str(again)) == (limit, str(limit))


@many
@given(st.text() | st.lists(st.sampled_from("a:{}._-%!\n\ud800"), max_size=9).map("".join))
def test_text_is_a_scope_or_refused_by_its_name(text: str) -> None:
    try:
        assert KeyTemplate.parse(text).text == text
    except (LimitSyntaxError, KeyTemplateError) as error:
        assert_names(error, text, text.partition(":")[0])


# What is packed.

_CLAIM = cast("Claim", None)  # nothing here acknowledges


def _pack(about: Any, data: bytes, version: bytes = b"1") -> bytes:
    written = json.dumps(about).encode()
    return version + struct.pack("<I", len(written)) + written + data


_values = st.sampled_from(
    [
        None,
        True,
        7,
        10**40,
        1.5,
        float("nan"),
        "",
        "x",
        "\ud800",
        [],
        [[1]],
        {},
        {"a": {"b": [None]}},
    ]
)
# What kombu reads as another type.
_marked = st.builds(
    lambda kind, value: {"__type__": kind, "__value__": value},
    st.sampled_from(["datetime", "date", "decimal", "uuid", "bytes", "base64", "evil", [1]]),
    _values,
)
_tables = st.dictionaries(st.text(max_size=5), _values, max_size=3)
_about = {
    "headers": _tables,
    "properties": _tables,
    "delivery_info": _tables,
    "content_type": st.none() | st.just("application/json"),
    "content_encoding": st.none() | st.just("utf-8"),
    "text": st.booleans(),
}
_well_formed = st.builds(_pack, st.fixed_dictionaries(_about), st.binary())
_odd = {name: right | _values | _marked for name, right in _about.items()}
_packed = st.one_of(
    st.binary(),
    st.binary().map(lambda data: b"1" + data),
    st.builds(_pack, _values | _marked | st.fixed_dictionaries({}, optional=_odd), st.binary()),
    _well_formed.flatmap(lambda one: st.integers(0, len(one)).map(lambda end: one[:end])),
    mutated(_well_formed, st.binary(max_size=3)),
    st.just(_pack([], b"").replace(b"[]", b"[" * 100_000)),
    st.just(b"1" + struct.pack("<I", 200_000) + b"[" * 200_000),
)


@many
@given(_packed)
@example(_pack({**dict.fromkeys(packing._FIELDS), "text": False}, b""))
def test_bytes_are_a_message_or_unreadable(packed: bytes) -> None:
    try:
        message = packing.unpack(packed, {"application/json"}, _CLAIM)
        assert packing.headers(packed) == message.headers
    except UnreadableMessageError:
        return
    assert isinstance(message.headers, dict)
    assert isinstance(message.properties, dict)
    assert isinstance(message.delivery_info, dict)
    assert isinstance(message.body, (str, bytes))


@many
@given(st.fixed_dictionaries(_about), st.text() | st.binary())
def test_a_message_comes_out_as_it_went_in(about: dict[str, Any], body: str | bytes) -> None:
    del about["text"]
    message = Message(body, **{**about, "headers": {}})  # type: ignore[arg-type]  # bytes as well
    message.headers = about["headers"]
    found = packing.unpack(packing.pack(message), None, _CLAIM)
    assert found.body == body
    for name in about:
        assert repr(getattr(found, name)) == repr(getattr(message, name))  # nan differs from nan


_definitions = st.lists(_limits, min_size=1, max_size=3).map(
    lambda limits: definitions.pack(limits, 0, "").text.encode()
)


@many
@given(st.binary() | mutated(_definitions, st.binary(max_size=3)))
def test_bytes_are_a_definition_or_refused(text: bytes) -> None:
    try:
        limits = definitions.unpack(text)
    except LimitError:
        return
    assert definitions.unpack(definitions.pack(limits, 0, "").text.encode()) == limits


# Names of keys.

_nasty = st.one_of(
    st.text(max_size=9),
    st.text(alphabet=":/{}+#%! \0\n", max_size=4),
    st.sampled_from(["", "x" * 300, "\ud800", "é", "e\u0301", "limits", "a:b", "a/b", "None"]),
)
_names = st.from_regex(r"[a-z_][a-z0-9_.\-]{0,3}", fullmatch=True)
_prefixes = st.sampled_from(["{throttle}", "throttle", "{a}{b}", "", "é", "{throttle", "x" * 300])


def _every_name(
    prefix: str, queues: Sequence[str], refs: Sequence[LimitRef]
) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield all names, and what each is for."""
    keys = Keys(prefix)
    for kind in ("limits", "workers", "membership", "unacknowledged", "quarantine"):
        yield getattr(keys, kind), (prefix, kind)
    for ref in refs:
        for kind in ("state", "entries", "pause", "backlog", "return_times", "waiting_lists"):
            yield getattr(keys, kind)(ref), (prefix, kind, ref)
        yield f"{keys.entries(ref)}+1", (prefix, "log", ref)
        for kind in ("key_cap", "waiting_list_index"):
            yield getattr(keys, kind)(ref.name), (prefix, kind, ref.name)
    for text in queues:
        for kind in ("claims", "wakeup_channel"):
            yield getattr(keys, kind)(text), (prefix, kind, text)
        for kind, name in zip(("lines", "messages", "due", "polls"), keys.queue(text), strict=True):
            yield name, (prefix, kind, text)
        for ref in refs:
            yield keys.waiting_list(text, ref), (prefix, "waiting", text, ref)
        for needed in [*((ref,) for ref in refs), refs, refs[::-1]]:
            yield keys.line(text, needed), (prefix, "line", text, tuple(needed))


@settings(max_examples=examples(1_000))
@given(
    st.lists(_prefixes, min_size=1, max_size=2),
    st.lists(_nasty, max_size=3),
    st.lists(_names, min_size=1, max_size=2),
    st.lists(_nasty | st.tuples(_nasty, _nasty), max_size=3),
)
def test_no_two_names_meet(
    prefixes: list[str], queues: list[str], names: list[str], values: list[Any]
) -> None:
    keyed = [None, *map(encode_key, values)]
    assert len(set(keyed)) == 1 + len(set(values))
    refs = [LimitRef(name, key) for name, key in product(names, keyed)]
    found: dict[str, tuple[object, ...]] = {}
    for prefix in prefixes:
        for name, meaning in _every_name(prefix, queues, refs):
            assert found.setdefault(name, meaning) == meaning
