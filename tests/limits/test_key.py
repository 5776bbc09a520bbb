"""Keys: their encoding, which has no collisions, and the arguments of tasks."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_throttle.errors import KeyTemplateError, KeyValueError, LimitSyntaxError
from celery_throttle.limits.key import LimitRef, encode_key, parse_key
from celery_throttle.limits.key_template import ArgumentReader, KeyTemplate


class Plan(enum.Enum):
    GOLD = 1
    FREE = 2


class Region(str, enum.Enum):
    EU = "eu"


class Level(enum.IntEnum):
    HIGH = 9


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Loud(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "LOUD"


class Odd(float):
    def __repr__(self) -> str:
        return f"Odd({float(self)})"


class TestEncodeKey:
    @pytest.mark.parametrize(
        ("value", "key"),
        [
            ("tenant-42", "tenant-42"),
            ("a.b_c@d.example", "a.b_c@d.example"),
            (42, "42"),
            ("42", "42"),
            (-7, "-7"),
            ("042", "042"),
            ("", "!empty"),
            (None, "!none"),
            ("None", "None"),
            (True, "!true"),
            (False, "!false"),
            (1, "1"),
            ("!none", "%21none"),
            ("a b", "a%20b"),
            ("a:b", "a%3Ab"),
            ("a\nb\0", "a%0Ab%00"),
            ("{throttle}", "%7Bthrottle%7D"),
            ("100%", "100%25"),
            ("~", "%7E"),
            ("é", "%C3%A9"),
            ("\ud800", "%ED%A0%80"),
            (b"", "!bytes="),
            (b"a\xff", "!bytes=a%FF"),
            (1.0, "!float=1.0"),
            (1e300, "!float=1e%2B300"),
            (float("nan"), "!float=nan"),
            (Odd(1.5), "!float=1.5"),
            (Decimal("1.50"), "!decimal=1.50"),
            (UUID(int=1), "!uuid=00000000-0000-0000-0000-000000000001"),
            (date(2024, 2, 29), "!date=2024-02-29"),
            (datetime(2024, 2, 29, 12), "!datetime=2024-02-29T12%3A00%3A00"),  # noqa: DTZ001 - naive
            (
                datetime(2024, 2, 29, 12, tzinfo=timezone.utc),
                "!datetime=2024-02-29T12%3A00%3A00%2B00%3A00",
            ),
            (Plan.GOLD, "!enum=Plan.GOLD"),
            (Access.READ, "!enum=Access.READ"),
            (Access(0), "!enum=Access.0"),
            (Region.EU, "eu"),
            (Level.HIGH, "9"),
            (Loud("quiet"), "quiet"),
            (("eu", 42), "eu:42"),
            (("eu",), "eu"),
            (("", ""), "!empty:!empty"),
            (("a:b", None), "a%3Ab:!none"),
        ],
    )
    def test_table(self, value: Any, key: str) -> None:
        assert encode_key(value) == key
        assert type(encode_key(value)) is str

    def test_flags_combined_are_a_key_of_their_own(self) -> None:
        access = (Access.READ, Access.WRITE, Access.READ | Access.WRITE)
        assert len({encode_key(flags) for flags in access}) == 3

    def test_a_long_key_becomes_a_digest(self) -> None:
        assert encode_key("x" * 80) == "x" * 80
        assert re.fullmatch("#[0-9a-f]{32}", encode_key("x" * 81))
        assert encode_key("x" * 81) != encode_key("x" * 82)
        assert encode_key(("x" * 81, "y")) != encode_key("x" * 81 + ":y")
        assert len(encode_key("\0" * 1_000_000)) == len(encode_key(b"\xff" * 1_000_000)) == 33
        assert encode_key("x" * 81) not in (encode_key(encode_key("x" * 81)), encode_key(b"x" * 81))

    def test_a_digest_does_not_change_between_versions(self) -> None:
        assert encode_key("x" * 81) == "#1cd949126ad355b5adef8dede1f367fa"

    @pytest.mark.parametrize(
        ("value", "kind"),
        [
            ({"a": 1}, "dict"),
            ([1, 2], "list"),
            ({1}, "set"),
            (object(), "object"),
            (1j, "complex"),
            (bytearray(b"a"), "bytearray"),
            (time(12), "time"),
            (timedelta(1), "timedelta"),
            (("a", ["b"]), "list"),
            (("a", ("b",)), "tuple"),
            (str, "type"),
        ],
    )
    def test_refuses_other_types(self, value: Any, kind: str) -> None:
        with pytest.raises(KeyValueError, match=f"is a {kind}, .* allowed: str, int, None"):
            encode_key(value)

    def test_refuses_no_parts(self) -> None:
        with pytest.raises(KeyValueError, match=r"\(\) cannot be a key; allowed"):
            encode_key(())

    def test_refuses_a_number_python_cannot_write(self) -> None:
        try:
            str(10**5000)
        except ValueError:
            with pytest.raises(KeyValueError, match="an int cannot be"):
                encode_key(10**5000)


any_text = st.text(st.characters(exclude_categories=())) | st.text(":!%#={}.ab0\n \0")
scalars = (
    any_text
    | st.integers()
    | st.none()
    | st.booleans()
    | st.binary()
    | st.floats()
    | st.decimals()
    | st.uuids()
    | st.dates()
    | st.datetimes()
    | st.sampled_from([Plan.GOLD, Plan.FREE, Region.EU, Level.HIGH])
)
keys = st.lists(scalars, min_size=1, max_size=4).map(tuple)


def identity(value: Any) -> tuple[type, str]:
    """What makes a part itself: its type and text, and the number 42 is the text "42"."""
    if isinstance(value, str):
        return str, str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str, str(int(value))
    return type(value), repr(value)


class TestNoTwoKeysMeet:
    @given(keys, keys)
    @example(("a", "b"), ("a:b",))
    @example(("", ""), ("",))
    @example((None,), ("!none",))
    @example((b"a",), ("!bytes=a",))
    @example((True,), (1,))
    @example((1.0,), (1,))
    @example(("%41",), ("A",))
    @example(("\ud83d\ude00",), ("\U0001f600",))
    @example((42,), ("42",))
    def test_same_key_only_for_same_parts(self, one: tuple[Any, ...], two: tuple[Any, ...]) -> None:
        same = list(map(identity, one)) == list(map(identity, two))
        assert (encode_key(one) == encode_key(two)) is same

    @given(st.lists(any_text, min_size=1, max_size=3), st.data())
    def test_parts_that_differ_by_where_they_are_cut(
        self, parts: list[str], data: st.DataObject
    ) -> None:
        joined = ":".join(parts)
        cut = data.draw(st.integers(0, len(joined)))
        other = (joined[:cut], joined[cut:])
        assert (encode_key(tuple(parts)) == encode_key(other)) is (tuple(parts) == other)

    @given(keys)
    def test_a_key_is_short_and_harmless(self, parts: tuple[Any, ...]) -> None:
        assert re.fullmatch(r"[A-Za-z0-9_.\-@%!=:]{1,80}|#[0-9a-f]{32}", encode_key(parts))

    @given(keys)
    def test_a_scope_encodes_as_a_call_does(self, parts: tuple[Any, ...]) -> None:
        scope = KeyTemplate.parse("mail" + ":{part}" * len(parts))
        assert scope.ref(parts) == LimitRef("mail", encode_key(parts))


class TestParseKey:
    @pytest.mark.parametrize(
        ("text", "key"),
        [
            ("tenant-42", "tenant-42"),
            ("a b", "a%20b"),
            ("é:{x}", "%C3%A9:%7Bx%7D"),
            ("a%20b", "a%20b"),
            ("%61%3a", "a%3A"),
            ("100%", "100%25"),
            ("%21none", "%21none"),
            ("!none", "!none"),
            ("!nonesuch", "%21nonesuch"),
            ("!float=1.0:eu", "!float=1.0:eu"),
            ("!enum=Plan x", "!enum=Plan%20x"),
            ("\udc80", "%ED%B2%80"),
            ("#" + "0" * 32, "#" + "0" * 32),
            ("#" + "0" * 31, "%23" + "0" * 31),
            ("x" * 81, encode_key("x" * 81)),
        ],
    )
    def test_text(self, text: str, key: str) -> None:
        assert parse_key(text) == key

    @given(keys)
    def test_an_encoded_key_stays_as_it_is(self, parts: tuple[Any, ...]) -> None:
        assert parse_key(encode_key(parts)) == encode_key(parts)

    @pytest.mark.parametrize("text", ["", "a:", ":a", "a::b"])
    def test_a_part_must_not_be_empty(self, text: str) -> None:
        with pytest.raises(KeyValueError, match=re.escape(f"key {text!r} is empty; allowed")):
            parse_key(text)


class TestScope:
    @pytest.mark.parametrize(
        ("text", "arguments", "values", "ref"),
        [
            ("stripe", (), (), LimitRef("stripe", None)),
            ("mail:eu", (), (), LimitRef("mail", "eu")),
            ("mail:eu west", (), (), LimitRef("mail", "eu%20west")),
            ("mail:{tenant_id}", ("tenant_id",), (42,), LimitRef("mail", "42")),
            ("mail:{tenant_id}", ("tenant_id",), ("",), LimitRef("mail", "!empty")),
            ("mail:{a}:{b}", ("a", "b"), ("x:y", None), LimitRef("mail", "x%3Ay:!none")),
            ("mail:eu:{a}", ("a",), (7,), LimitRef("mail", "eu:7")),
            ("mail:{a}:eu:{a}", ("a", "a"), (7, 8), LimitRef("mail", "7:eu:8")),
        ],
    )
    def test_names_a_limit_and_key(
        self, text: str, arguments: tuple[str, ...], values: tuple[Any, ...], ref: LimitRef
    ) -> None:
        scope = KeyTemplate.parse(text)
        assert scope.text == text
        assert scope.name == ref.name
        assert scope.arguments == arguments
        assert scope.ref(values) == scope.ref(list(values)) == ref

    def test_text_in_a_scope_is_the_key_of_a_call(self) -> None:
        assert KeyTemplate.parse("mail:42:eu").ref() == ("mail", encode_key((42, "eu")))

    @pytest.mark.parametrize(
        ("text", "part"),
        [
            ("mail:", ""),
            ("mail::eu", ""),
            ("mail:{a}:", ""),
            ("mail:{}", "{}"),
            ("mail:{", "{"),
            ("mail:}", "}"),
            ("mail:{a", "{a"),
            ("mail:a}", "a}"),
            ("mail:{a}{b}", "{a}{b}"),
            ("mail:eu-{a}", "eu-{a}"),
            ("mail:{a} ", "{a} "),
            ("mail:{ a }", "{ a }"),
            ("mail:{{a}}", "{{a}}"),
            ("mail:{a.b}", "{a.b}"),
            ("mail:{a[0]}", "{a[0]}"),
            ("mail:{a!r}", "{a!r}"),
            ("mail:{0}", "{0}"),
        ],
    )
    def test_refuses_a_malformed_part(self, text: str, part: str) -> None:
        with pytest.raises(KeyTemplateError, match="allowed") as caught:
            KeyTemplate.parse(text)
        assert repr(part) in str(caught.value)
        assert repr(text) in str(caught.value)

    @pytest.mark.parametrize("text", ["", ":a", "{a}", "mail {a}", "9:a", " mail:eu"])
    def test_refuses_a_name_no_limit_can_have(self, text: str) -> None:
        with pytest.raises(LimitSyntaxError, match="cannot name a limit"):
            KeyTemplate.parse(text)

    @pytest.mark.parametrize("text", [None, 5, b"mail", ("mail", "eu")])
    def test_refuses_what_is_no_text(self, text: Any) -> None:
        with pytest.raises(KeyTemplateError, match=re.escape(f"{text!r} is not text; allowed")):
            KeyTemplate.parse(text)

    @pytest.mark.parametrize("values", [(), (1, 2)])
    def test_refuses_too_few_or_too_many_values(self, values: tuple[int, ...]) -> None:
        with pytest.raises(KeyValueError, match=r"'mail:\{a\}' was given \d values; allowed: 1"):
            KeyTemplate.parse("mail:{a}").ref(values)

    def test_refuses_a_value_that_is_no_key(self) -> None:
        with pytest.raises(KeyValueError, match="is a list"):
            KeyTemplate.parse("mail:{a}").ref(([],))


def plain(tenant: Any, order: Any = "none", *, region: Any = "eu") -> None:
    """A usual task."""


def positional(tenant: Any, /, order: Any = 5, **options: Any) -> None:
    """One argument that has no name for callers, and any others."""


def collecting(tenant: Any, *orders: Any, region: Any = "eu") -> None:
    """A task that takes any number of arguments."""


def empty() -> None:
    """A task without arguments."""


def reader(function: Callable[..., Any], *names: str) -> ArgumentReader:
    return ArgumentReader.for_signature(inspect.signature(function), names, "task 'shop.charge'")


class TestArgumentReader:
    @pytest.mark.parametrize(
        ("function", "names", "args", "kwargs", "values"),
        [
            (plain, ("tenant",), (1,), {}, (1,)),
            (plain, ("tenant",), (), {"tenant": 1}, (1,)),
            (plain, ("order", "tenant"), (1, 2), {}, (2, 1)),
            (plain, ("order", "tenant"), (1,), {"order": 2}, (2, 1)),
            (plain, ("order", "region"), (1,), {}, ("none", "eu")),
            (plain, ("region",), (1, 2), {"region": "us"}, ("us",)),
            (plain, ("tenant", "tenant"), (1,), {}, (1, 1)),
            (plain, ("tenant",), (None,), {}, (None,)),
            (plain, (), (1,), {}, ()),
            (positional, ("tenant", "order"), (1,), {"tenant": 2}, (1, 5)),
            (positional, ("color",), (1,), {"color": "red"}, ("red",)),
            (collecting, ("tenant", "region"), (1, 2, 3), {}, (1, "eu")),
            (collecting, ("region",), (1, 2, 3), {"region": "us"}, ("us",)),
        ],
    )
    def test_finds_values(
        self,
        function: Callable[..., Any],
        names: Sequence[str],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        values: tuple[Any, ...],
    ) -> None:
        assert reader(function, *names).read(args, kwargs) == values
        assert reader(function, *names).read(list(args), kwargs) == values

    @pytest.mark.parametrize(
        ("function", "name", "allowed"),
        [
            (plain, "tenant_id", "tenant, order, region"),
            (plain, "", "tenant, order, region"),
            (collecting, "orders", "tenant, region"),
            (positional, "options", "tenant, order"),
            (empty, "tenant", "none, it takes no single argument"),
        ],
    )
    def test_refuses_a_name_when_the_task_is_defined(
        self, function: Callable[..., Any], name: str, allowed: str
    ) -> None:
        with pytest.raises(KeyTemplateError) as caught:
            reader(function, name)
        expected = f"task 'shop.charge' has no argument {name!r}; allowed: {allowed}"
        assert str(caught.value) == expected

    @pytest.mark.parametrize(
        ("function", "name", "args", "kwargs"),
        [
            (plain, "tenant", (), {"order": 1}),
            (positional, "tenant", (), {"tenant": 1}),
            (positional, "color", (1,), {}),
        ],
    )
    def test_refuses_a_call_without_the_argument(
        self,
        function: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        with pytest.raises(KeyValueError, match=f"'shop.charge' .* without the argument '{name}'"):
            reader(function, name).read(args, kwargs)

    @pytest.mark.parametrize(
        ("args", "kwargs"),
        [(None, {}), (5, {}), ({"tenant": 1}, {}), ([], ["tenant"]), ([], "tenant"), ([], None)],
    )
    def test_refuses_what_are_no_arguments(self, args: Any, kwargs: Any) -> None:
        with pytest.raises(
            KeyValueError, match=r"'shop\.charge' was called with .* allowed: a list"
        ):
            reader(plain, "tenant").read(args, kwargs)

    @given(
        st.lists(st.integers(), max_size=3),
        st.dictionaries(st.sampled_from(["tenant", "order", "region"]), st.integers()),
    )
    def test_agrees_with_bind(self, args: list[int], kwargs: dict[str, int]) -> None:
        names = ("tenant", "order", "region")
        try:
            bound = inspect.signature(plain).bind(*args, **kwargs)
        except TypeError:
            return  # not a call this function could receive
        bound.apply_defaults()
        assert reader(plain, *names).read(args, kwargs) == tuple(bound.arguments[n] for n in names)

    def test_feeds_a_scope(self) -> None:
        scope = KeyTemplate.parse("mail:{region}:{tenant}")
        read = reader(plain, *scope.arguments).read
        assert scope.ref(read((42,), {"region": "us"})) == LimitRef("mail", "us:42")
