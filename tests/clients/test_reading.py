"""Answers of APIs without a profile: headers in every form, and hostile ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from email.message import Message
from email.utils import formatdate
from math import isfinite
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_throttle.clients.answer import ApiAnswer
from celery_throttle.clients.profiles import reading
from celery_throttle.clients.profiles.fields import MAX_DELAY_SECONDS, MAX_HEADER_CHARACTERS
from celery_throttle.clients.profiles.generic import GENERIC
from celery_throttle.clients.profiles.profile import Meaning
from celery_throttle.clients.profiles.reading import Reading

NOW = 1_700_000_000.0
DATE = "Tue, 14 Nov 2023 22:13:20 GMT"  # the same
YEAR = 365 * 86_400


class Left(NamedTuple):
    """What is left of a quantity, and the seconds until its reset."""

    remaining: int | None
    reset_after: float | None
    quantity: str = "requests"


def read(status: int, headers: Mapping[str, str], now: float) -> Reading:
    return reading.read(GENERIC, ApiAnswer(status, headers), now)


def left(found: Reading) -> tuple[Left, ...]:
    return tuple(Left(one.remaining, one.reset_after, one.quantity) for one in found.quotas)


class Pairs(Mapping[str, str]):
    """Headers as aiohttp has them: names in any case, a repeated header twice."""

    def __init__(self, *pairs: tuple[str, str]) -> None:
        self.pairs = pairs

    def __getitem__(self, name: str) -> str:
        return next(text for key, text in self.pairs if key.lower() == name.lower())

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def items(self) -> Any:
        return self.pairs


def quotas(headers: Mapping[str, str], status: int = 200, now: float = NOW) -> tuple[Left, ...]:
    """The quotas of headers that have nothing odd."""
    info = read(status, headers, now)
    assert info.warnings == ()
    return left(info)


def test_an_answer_that_says_nothing() -> None:
    assert read(200, {}, NOW) == Reading(Meaning.ACCEPTED)
    headers = {"Date": "soon", "Content-Type": "text/html"}
    assert read(200, headers, NOW) == Reading(Meaning.ACCEPTED)
    assert read(429, {"Content-Length": "0"}, NOW) == Reading(Meaning.REFUSAL)


# Retry-After.


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"Retry-After": "120"}, 120.0),
        ({"Retry-After": "0"}, 0.0),
        ({"Retry-After": " 7\t"}, 7.0),
        ({"Retry-After": "2.0"}, 2.0),  # Shopify
        ({"Retry-After": "0.6"}, 0.6),
        ({"Retry-After": "Tue, 14 Nov 2023 22:14:20 GMT"}, 60.0),
        ({"Retry-After": "Tuesday, 14-Nov-23 22:14:20 GMT"}, 60.0),
        ({"Retry-After": "Tue Nov 14 22:14:20 2023"}, 60.0),
        ({"Retry-After": "Tue, 14 Nov 2023 22:13:15 GMT"}, 0.0),  # just past
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"x-ms-retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after-ms": "10", "x-ms-retry-after-ms": "250"}, 0.01),
        ({"Retry-After": "3600"}, 3600.0),
    ],
)
def test_when_to_come_again(headers: dict[str, str], wait: float) -> None:
    assert read(429, headers, NOW) == Reading(Meaning.REFUSAL, wait)
    for status in (200, 301, 401, 500):
        found = read(status, headers, NOW)
        assert (found.meaning in (Meaning.ACCEPTED, Meaning.FAILURE), found.wait) == (True, None)


def test_the_statuses_that_need_a_time() -> None:
    headers = {"Retry-After": "7"}
    assert read(403, headers, NOW) == Reading(Meaning.REFUSAL, 7.0)
    assert read(503, headers, NOW) == Reading(Meaning.OVERLOAD, 7.0)


@pytest.mark.parametrize("skew", [-YEAR, -600, 0, 1, 3600, 10 * YEAR, -NOW])
@pytest.mark.parametrize(
    "until",
    [
        {"Retry-After": "Tue, 14 Nov 2023 22:14:05 GMT"},
        {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1700000045"},
        {"RateLimit-Remaining": "0", "RateLimit-Reset": "1700000045000"},
    ],
)
def test_a_skewed_clock_does_not_matter(skew: float, until: dict[str, str]) -> None:
    info = read(429, {"Date": DATE, **until}, NOW + skew)
    assert info.warnings == ()
    assert info.wait == 45 or left(info) == (Left(0, 45.0),)


@pytest.mark.parametrize(
    "date",
    [
        "",
        "today",
        "Thu, 01 Jan 1970 00:00:00 GMT",
        "Tue, 45 Foo 2023 22:13:20 GMT",
        "Tue, 4 Nov 99999 22:13:20 GMT",
        "Tue, 4 Nov 99999999999 2:1:0",
    ],
)
def test_a_date_that_is_none(date: str) -> None:
    info = read(429, {"Date": date, "Retry-After": DATE}, NOW - 30)
    assert info.wait == 30
    (warning,) = info.warnings
    assert warning.startswith(f"date: {date!r} is no ")


def test_a_second_form_stands_in_for_one_that_cannot_be_read() -> None:
    info = read(429, {"Retry-After-Ms": "soon", "Retry-After": "3"}, NOW)
    assert info.wait == 3
    assert info.warnings == ("retry-after-ms: 'soon' is no number of at most 15 digits, ignored",)


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "soon"}, {"RateLimit": '"a";r=0;t=9'}])
def test_a_503_that_does_not_say_when_may_mean_anything(headers: dict[str, str]) -> None:
    assert read(503, headers, NOW).wait is None


# What is left, as the documentation of each API has it.


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        # The examples of drafts 08 to 10.
        ({"RateLimit": '"default";r=50;t=30'}, [Left(50, 30)]),
        ({"RateLimit": '"default";r=999;pk=:dHJpYWwxMjEzMjM=:'}, [Left(999, None)]),
        (
            {
                "RateLimit": '"peruser";r=300000000;t=60;pk=:QXBwLTk5OQ==:',
                "RateLimit-Policy": '"peruser";q=65535;qu="content-bytes";w=10;pk=:sdfjLJUOUH==:',
            },
            [Left(300_000_000, 60, "content-bytes")],
        ),
        (
            {
                "RateLimit": '"permin";r=5;t=7,"perhr";r=100;t=1800 , "mine"; r=1',
                "RateLimit-Policy": '"permin";q=50;w=60,"perhr";q=1000;w=3600;qu="requests"',
            },
            [Left(1, None)],
        ),
        # As express-rate-limit writes drafts 8 and 7.
        (
            {
                "RateLimit-Policy": '"100-in-15min"; q=100; w=900; pk=:ZDY4NzNhNTQ1Nzcx:',
                "RateLimit": '"100-in-15min"; r=99; t=897',
            },
            [Left(99, 897)],
        ),
        (
            {
                "RateLimit-Policy": "100;w=900",
                "RateLimit": "limit=100, remaining=50, reset=5",
            },
            [Left(50, 5)],
        ),
        ({"RateLimit": "limit=100;w=60,remaining=50;x,reset=5"}, [Left(50, 5)]),
        ({"RateLimit": '"a\\"b, c;";r=1;x=?0;y=@5;z=%"%c3%bc";u=v/w;t=2'}, [Left(1, 2)]),
        # Drafts 00 to 06, and GitLab.
        (
            {
                "RateLimit-Limit": "100, 100;w=60",
                "RateLimit-Remaining": "99",
                "RateLimit-Reset": "50",
            },
            [Left(99, 50)],
        ),
        (
            {
                "RateLimit-Policy": "100;w=10",
                "RateLimit-Remaining": "50;comment=x",
                "RateLimit-Reset": "5;x",
            },
            [Left(50, 5)],
        ),
        (
            {
                "Date": "Wed, 17 Jul 2019 00:57:57 GMT",
                "RateLimit-Limit": "600",
                "RateLimit-Observed": "6",
                "RateLimit-Remaining": "594",
                "RateLimit-Reset": "1563325137",
                "RateLimit-ResetTime": "Wed, 17 Jul 2019 00:58:57 GMT",
            },
            [Left(594, 60)],
        ),
        # GitHub.
        (
            {
                "Date": "Mon, 13 Jun 2022 11:48:53 GMT",
                "X-RateLimit-Limit": "30",
                "X-RateLimit-Remaining": "14",
                "X-RateLimit-Reset": "1655120964",
                "X-RateLimit-Used": "16",
                "X-RateLimit-Resource": "search",
            },
            [Left(14, 31)],
        ),
        # X (Twitter).
        (
            {
                "date": "Tue, 16 Jan 2024 15:55:00 GMT",
                "x-rate-limit-limit": "900",
                "x-rate-limit-remaining": "847",
                "x-rate-limit-reset": "1705420800",
            },
            [Left(847, 300)],
        ),
        # Shopify.
        ({"X-Shopify-Shop-Api-Call-Limit": "32/40"}, [Left(8, None)]),
        ({"X-Shopify-Shop-Api-Call-Limit": "41/40"}, [Left(0, None)]),
        # OpenAI, and Azure with plain seconds.
        (
            {
                "x-ratelimit-limit-requests": "60",
                "x-ratelimit-limit-tokens": "150000",
                "x-ratelimit-remaining-requests": "59",
                "x-ratelimit-remaining-tokens": "149984",
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-reset-tokens": "6m0s",
            },
            [Left(59, 1), Left(149_984, 360, "tokens")],
        ),
        (
            {"x-ratelimit-remaining-tokens": "9", "x-ratelimit-reset-tokens": "54"},
            [Left(9, 54, "tokens")],
        ),
        # Discord and Reddit.
        (
            {
                "X-RateLimit-Remaining": "1",
                "X-RateLimit-Reset": "1700000002.750",
                "X-RateLimit-Bucket": "abcd1234",
            },
            [Left(1, 2.75)],
        ),
        ({"x-ratelimit-remaining": "598.0", "x-ratelimit-reset": "301"}, [Left(598, 301)]),
        # A reset alone is not what is left.
        ({"X-RateLimit-Reset": "301"}, []),
        ({"X-RateLimit-Remaining": "3"}, [Left(3, None)]),
    ],
)
def test_what_is_left(headers: dict[str, str], expected: list[Left]) -> None:
    assert quotas(headers) == tuple(expected)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("59.5", 59.5),
        ("1700000030", 30),
        ("1700000030.5", 30.5),
        ("1700000030000", 30),
        ("1700000000250", 0.25),
        ("1699999990", 0),  # 10 s past
        ("20ms", 0.02),
        ("1s", 1),
        ("8.64s", 8.64),
        ("2m59.56s", 179.56),
        ("6m0s", 360),
        ("20m3.5s", 1203.5),
        ("0h59m59s", 3599),
        ("Tue, 14 Nov 2023 22:15:00 GMT", 100),
    ],
)
def test_the_forms_of_a_reset(text: str, seconds: float) -> None:
    (quota,) = quotas({"X-RateLimit-Remaining": "5", "X-RateLimit-Reset": text})
    assert quota.reset_after == pytest.approx(seconds, abs=1e-6)


# Several forms in one answer.


def test_of_several_quotas_in_one_unit_that_with_the_least_left_counts() -> None:
    headers = {
        "RateLimit": '"a";r=9, "b";r=10',
        "RateLimit-Remaining": "8",
        "X-RateLimit-Remaining-Requests": "7",
        "X-RateLimit-Remaining": "6",
        "X-Rate-Limit-Remaining": "5",
        "X-Shopify-Shop-Api-Call-Limit": "6/10",
    }
    for remaining in (4, 5, 6, 7, 8, 9):
        assert quotas(headers) == (Left(remaining, None),)
        headers.popitem()


def test_another_unit_is_another_quota() -> None:
    headers = {
        "RateLimit": '"traffic";r=9000;t=60',
        "RateLimit-Policy": '"traffic";q=10000;w=60;qu="content-bytes"',
        "X-RateLimit-Remaining": "5",
        "X-RateLimit-Remaining-Tokens": "70",
    }
    assert quotas(headers) == (
        Left(9000, 60, "content-bytes"),
        Left(5, None),
        Left(70, None, "tokens"),
    )


def test_a_form_that_cannot_be_read_gives_way_to_the_next() -> None:
    info = read(200, {"RateLimit": "r=?, t", "X-RateLimit-Remaining": "5"}, NOW)
    assert left(info) == (Left(5, None),)
    assert len(info.warnings) == 1


# Headers as clients have them.


@pytest.mark.parametrize("spell", [str.lower, str.upper, str.title, str])
def test_names_in_any_case(spell: Any) -> None:
    headers = {"Retry-After": "9", "X-RateLimit-Remaining": "0", "Date": DATE}
    info = read(429, {spell(name): text for name, text in headers.items()}, NOW)
    assert (info.wait, left(info)) == (9, (Left(0, None),))


def test_a_repeated_list_is_one_list() -> None:
    headers = Pairs(("ratelimit", '"a";r=1;t=2'), ("RateLimit", '"b";r=3'))
    assert quotas(headers) == (Left(1, 2),)


def test_what_may_not_be_repeated_is_ignored() -> None:
    info = read(429, Pairs(("Retry-After", "5"), ("Retry-After", "7")), NOW)
    assert (info.meaning is Meaning.REFUSAL, info.wait, len(info.warnings)) == (True, None, 1)
    assert "retry-after: '5, 7' is neither a number" in info.warnings[0]


def test_the_headers_of_the_standard_library() -> None:
    message: Any = Message()
    message["RateLimit"] = '"a";r=1'
    message["RateLimit"] = '"b";r=2'
    assert quotas(message) == (Left(1, None),)


# What is odd.


@pytest.mark.parametrize(
    ("text", "wait", "warning"),
    [
        ("31536000", MAX_DELAY_SECONDS, "is 31536000 s ahead, taken as 3600 s"),
        ("999999999999999", MAX_DELAY_SECONDS, "ahead, taken as 3600 s"),
        (
            "Thu, 14 Nov 2024 22:13:20 GMT",
            MAX_DELAY_SECONDS,
            "is 31622400 s ahead, taken as 3600 s",
        ),
        ("Fri, 31 Dec 9999 23:59:59 GMT", MAX_DELAY_SECONDS, "ahead, taken as 3600 s"),
        ("Tue, 14 Nov 2023 22:11:20 GMT", 0.0, "is 120 s ago, taken as 0 s"),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0, "ago, taken as 0 s"),
        ("", None, "is neither a number of at most 15 digits nor a date, ignored"),
        ("-1", None, "ignored"),
        ("+5", None, "ignored"),
        ("nan", None, "ignored"),
        ("inf", None, "ignored"),
        ("1e3", None, "ignored"),
        ("0x10", None, "ignored"),
        ("1_000", None, "ignored"),
        ("5 s", None, "ignored"),
        (".5", None, "ignored"),
        ("١٢", None, "ignored"),
        ("1000000000000000", None, "ignored"),
        ("9" * 5000, None, "has more than 1000 characters, ignored"),
        ("Tue, 4 Nov 99999 22:13:20 GMT", None, "ignored"),
        ("Tue, 14 Foo 2023 22:13:20 GMT", None, "ignored"),
        ("\udcff\x00", None, "ignored"),
    ],
)
def test_an_odd_wait(text: str, wait: float | None, warning: str) -> None:
    info = read(429, {"Retry-After": text}, NOW)
    assert (info.meaning is Meaning.REFUSAL, info.wait) == (True, wait)
    (message,) = info.warnings
    assert message.startswith("retry-after: ")
    assert message.endswith(warning)
    assert len(message) < 250


def test_a_text_that_is_just_short_enough() -> None:
    text = "5;".ljust(MAX_HEADER_CHARACTERS, "x")
    assert quotas({"X-RateLimit-Remaining": text}) == (Left(5, None),)
    assert left(read(200, {"X-RateLimit-Remaining": text + "x"}, NOW)) == ()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("X-RateLimit-Remaining", "-1"),  # Azure
        ("X-RateLimit-Remaining", "1000000000000000"),
        ("X-RateLimit-Remaining", "many"),
        ("X-RateLimit-Remaining", "5, 5"),
        ("X-Shopify-Shop-Api-Call-Limit", "40"),
        ("X-Shopify-Shop-Api-Call-Limit", "1/-1"),
        ("RateLimit", '"default"'),
        ("RateLimit", '"default";r=-1'),
        ("RateLimit", '"default";r="5"'),
        ("RateLimit", '"default";r'),
        ("RateLimit", '"default;r=1'),
        ("RateLimit", '"default\\";r=1'),
        ("RateLimit", '"default";r=1,'),
        ("RateLimit", '"default";R=1'),
        ("RateLimit", '("default");r=1'),
        ("RateLimit", '"a";r=1 "b";r=2'),
        ("RateLimit", "limit=1, remaining=x, reset=1"),
        ("RateLimit", '"a";r=1, ' * 200),
    ],
)
def test_what_is_left_oddly_is_ignored(name: str, text: str) -> None:
    info = read(200, {name: text}, NOW)
    assert info.quotas == ()
    (message,) = info.warnings
    assert message.startswith(f"{name.lower()}: ")
    assert message.endswith("ignored")
    assert len(message) < 250


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("86400", MAX_DELAY_SECONDS),
        ("24h0m0s", MAX_DELAY_SECONDS),
        ("1731536000", MAX_DELAY_SECONDS),
        ("1731536000000", MAX_DELAY_SECONDS),
        ("1699990000", 0.0),
        ("999999999", MAX_DELAY_SECONDS),
        ("1000000000", 0.0),
        ("100000000000000", None),
        ("-5", None),
        ("6m0", None),
        ("6 minutes", None),
        ("1.2.3s", None),
    ],
)
def test_an_odd_reset(text: str, seconds: float | None) -> None:
    info = read(200, {"X-RateLimit-Remaining": "5", "X-RateLimit-Reset": text}, NOW)
    assert left(info) == (Left(5, seconds),)
    (message,) = info.warnings
    assert message.startswith(f"x-ratelimit-reset: {text!r} is ")


def test_a_policy_that_cannot_be_read_leaves_requests() -> None:
    info = read(200, {"RateLimit": '"a";r=1', "RateLimit-Policy": '"a";qu='}, NOW)
    assert left(info) == (Left(1, None),)
    assert [message.split(":")[0] for message in info.warnings] == ["ratelimit-policy"]


def test_one_message_for_each_header() -> None:
    info = read(200, {"RateLimit": '"a";r=-1, "b";r=-1, "c";r=5;t=90000'}, NOW)
    assert left(info) == (Left(5, MAX_DELAY_SECONDS),)
    assert len(info.warnings) == 1


# Whatever the text.

NAMES = (
    *("Retry-After", "Retry-After-Ms", "X-Ms-Retry-After-Ms", "Date"),
    *("RateLimit", "RateLimit-Policy", "RateLimit-Limit"),
    *("RateLimit-Remaining", "RateLimit-Reset"),
    *("X-RateLimit-Remaining", "X-RateLimit-Reset"),
    *("X-Rate-Limit-Remaining", "X-Rate-Limit-Reset"),
    *("X-RateLimit-Remaining-Requests", "X-RateLimit-Reset-Requests"),
    *("X-RateLimit-Remaining-Tokens", "X-RateLimit-Reset-Tokens"),
    "X-Shopify-Shop-Api-Call-Limit",
)

NUMBERS = st.integers(-10, 10**17).map(str) | st.floats().map(str)
DATES = st.integers(-(10**10), 10**11).map(lambda at: formatdate(at, usegmt=True))
PIECES = st.text('"a;rtqu=,:/.-+159esmh TueNovGMT\\\x00') | st.lists(
    st.sampled_from(['"a"', ";r=", ";t=", ";qu=", ", ", "reset=", "remaining="]) | NUMBERS
).map("".join)
TEXTS = st.text() | st.binary().map(lambda raw: raw.decode("latin-1")) | NUMBERS | DATES | PIECES


@given(
    st.dictionaries(st.sampled_from(NAMES), TEXTS),
    st.sampled_from([200, 301, 403, 429, 503]),
    st.floats(0, 1e10),
)
@example(dict.fromkeys(NAMES, "1" * MAX_HEADER_CHARACTERS), 429, NOW)
@example(dict.fromkeys(NAMES, '"' * MAX_HEADER_CHARACTERS), 429, NOW)
@example(dict.fromkeys(NAMES, ";a" * (MAX_HEADER_CHARACTERS // 2)), 429, NOW)
@example(dict.fromkeys(NAMES, "a" + " " * (MAX_HEADER_CHARACTERS - 2) + "a"), 429, NOW)
@example(dict.fromkeys(NAMES, "9" * 1_000_000), 429, NOW)
def test_any_text_is_read(headers: dict[str, str], status: int, now: float) -> None:
    info = read(status, headers, now)
    waits = [info.wait, *(quota.reset_after for quota in info.quotas)]
    for wait in waits:
        assert wait is None or (
            type(wait) is float and isfinite(wait) and 0 <= wait <= MAX_DELAY_SECONDS
        )
    for quota in info.quotas:
        assert quota.remaining is None or 0 <= quota.remaining < 10**15
        assert quota.quantity
    assert (info.meaning is Meaning.REFUSAL) == (
        status == 429 or (status == 403 and "Retry-After" in headers)
    )
    assert len(info.warnings) <= len(headers)
    assert all(len(message) < 250 for message in info.warnings)
