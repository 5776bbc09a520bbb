"""Generated rules."""

from __future__ import annotations

from hypothesis import strategies as st

from celery_throttle.limits.key import LimitRef, encode_key
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.rules.rules import Route, Rules
from tests.algorithms.limits import any_rate, any_slots
from tests.limits.test_key import keys

_names = st.sampled_from(["mail", "api.v1", "_a-B"]) | st.from_regex(
    r"[A-Za-z_][A-Za-z0-9_.\-]{0,9}", fullmatch=True
)
_keys = st.none() | keys.map(encode_key)
_refs = st.builds(LimitRef, _names, _keys)
_rates = st.lists(any_rate, min_size=1, max_size=3).map(tuple)
_slots = st.tuples(any_slots) | st.tuples(any_rate, any_slots)

_tasks = st.text(max_size=9) | st.text("ab.*?[]\"'\\\n\x7f", max_size=4)
_parts = st.sampled_from(["", ":eu", ":{tenant_id}", ":{a}:b", ":é \"'\\\n\x7f"])
_templates = st.builds("".join, st.tuples(_names, _parts))
_specs = st.lists(_templates, min_size=1, max_size=3, unique=True).map(tuple)
_costs = st.sampled_from([2, 0.25, "{tokens}", "len({items})"])


@st.composite
def _routes(draw: st.DrawFn) -> Route:
    limits = draw(_specs)
    names = sorted({text.partition(":")[0] for text in limits})
    by_name = st.dictionaries(st.sampled_from(names), _costs)
    return Route(limits, draw(st.none() | _costs | by_name))


@st.composite
def _limits(draw: st.DrawFn) -> dict[LimitRef, Limits]:
    """Limits of a name and of its keys, all of which have slots, or none."""
    limits = {}
    for name in draw(st.lists(_names, max_size=3, unique=True)):
        kind = draw(st.sampled_from([_rates, _slots]))
        for key in draw(st.lists(_keys, max_size=3, unique=True)):
            limits[LimitRef(name, key)] = draw(kind)
    return limits


any_rules = st.builds(
    Rules,
    _limits(),
    st.dictionaries(_refs, st.integers(1, 100), max_size=3),
    st.dictionaries(_tasks, _routes(), max_size=4),
)
