"""Guarded clients against a real API: what they acquire, and what they learn."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from celery_throttle import (
    Feedback,
    Limiter,
    LimitFunctionError,
    LimitValueError,
    StoreUnavailableError,
    Throttled,
    UnknownLimitError,
    wrap,
)
from celery_throttle.clients import answer as clients
from celery_throttle.clients.profiles.models import OPENAI
from celery_throttle.clients.profiles.services import GITHUB
from tests.clients.api import (
    HTTP,
    Aiohttp,
    Answer,
    Api,
    AsyncHttpx,
    Client,
    Looped,
    Make,
    Requests,
    Urllib3,
    every,
    http,
)
from tests.servers.server import Server

#: Their times are long: no pause of the machine uses them up.
LIMITS = {
    "api": "1/h burst 3",
    "slow": "5/s",
    "mail": "1/d burst 2",
    "pool": "2 at once",
    "tokens": "1000/d burst 1000",
    "open": "1/h outage open",
    "moves": "adaptive 10..100/s burst 100",
    "learned": "adaptive 2..10 at once",
}


@every
def test_what_the_limit_refuses_is_not_sent(make: Make, limiter: Limiter, api: Api) -> None:
    client = make(limiter["api"])
    assert [client.get()[0] for _ in range(3)] == [200, 200, 200]
    with pytest.raises(Throttled) as caught:
        client.get()
    assert (caught.value.limit, caught.value.key) == ("api", None)
    assert 3500 < (caught.value.retry_after or 0) <= 3600
    assert len(api.paths) == 3


@every
def test_a_call_waits_as_long_as_it_may(make: Make, limiter: Limiter) -> None:
    client = make(limiter["slow"], max_wait=10)
    began = time.monotonic()
    for _ in range(3):
        client.get()
    assert time.monotonic() - began >= 0.38
    limiter["slow"].pause(60)
    with pytest.raises(Throttled):
        make(limiter["slow"], max_wait=0.01).get()


@http
def test_key_and_cost_come_from_the_request(make: Make, limiter: Limiter) -> None:
    client = make(
        lambda request: limiter["mail", request.headers["x-account"]],
        cost=lambda request: int(request.headers["x-cost"]),
    )
    client.get(**{"x-account": "a", "x-cost": "2"})
    client.get(**{"x-account": "b", "x-cost": "1"})
    assert limiter["mail", "a"].peek(0).remaining == 0
    assert limiter["mail", "b"].peek(0).remaining == 1
    with pytest.raises(Throttled) as caught:
        client.get(**{"x-account": "a", "x-cost": "1"})
    assert caught.value.key == "a"


@every
def test_a_function_says_that_no_limit_applies(make: Make, limiter: Limiter, api: Api) -> None:
    costs: list[Any] = []
    client = make(lambda *_: None, cost=costs.append)
    api.answers.append(Answer(429, {"Retry-After": "60"}))
    assert [client.get()[0] for _ in range(2)] == [429, 200]
    assert not costs
    client = make(lambda *_: {"requests": [limiter["mail"], None], "tokens": None})
    assert client.get()[0] == 200
    assert limiter["mail"].peek(0).remaining == 1


@every
def test_a_function_that_is_wrong_fails_its_call_alone(
    make: Make, limiter: Limiter, api: Api
) -> None:
    results: list[Any] = [3, "mail", limiter["mail"], limiter["mail"]]

    def by_plan(*_: Any) -> Any:
        return results.pop(0)  # an IndexError at the end

    def in_units(*_: Any) -> Any:
        return 1 if not results else 0

    client = make(by_plan, cost=in_units)
    for wrong in (
        "the limits function .*by_plan' returned 3",
        "returned 'mail': .* allowed: such as",
    ):
        with pytest.raises(LimitFunctionError, match=wrong):
            client.get()
    with pytest.raises(
        LimitFunctionError, match=r"cost function .*in_units' returned 0: cost 0 is not allowed"
    ):
        client.get()
    assert not api.paths
    assert client.get()[0] == 200
    with pytest.raises(LimitFunctionError, match=r"by_plan' raised IndexError: 'pop from") as error:
        client.get()
    assert isinstance(error.value.__cause__, IndexError)
    assert limiter["mail"].peek(0).remaining == 1


@every
def test_functions_may_be_async_where_the_client_is(make: Make, limiter: Limiter, api: Api) -> None:
    async def limits(*_: Any) -> Any:
        await asyncio.sleep(0)
        return limiter["mail"]

    async def cost(*_: Any) -> int:
        await asyncio.sleep(0)
        return 2

    client = make(limits, cost=cost)
    if isinstance(client, Looped):
        assert client.get()[0] == 200
        assert limiter["mail"].peek(0).remaining == 0
    else:
        with pytest.raises(LimitFunctionError, match="limits' is async, but its caller blocks"):
            client.get()
        assert not api.paths


@http
def test_several_limits_all_or_nothing(make: Make, limiter: Limiter) -> None:
    limits = {
        "requests": [limiter["api", "t"], limiter["mail", "fixed"]],
        "tokens": limiter["tokens", "t"],
    }
    client = make(limits, cost={"tokens": 400})
    for _ in range(2):
        client.get()
    with pytest.raises(Throttled) as caught:
        client.get()
    assert caught.value.limit == "mail"
    assert limiter["api", "t"].peek(0).remaining == 1
    assert limiter["tokens", "t"].peek(0).remaining == 200


@every
def test_a_refusal_stops_everyone(
    make: Make, limiter: Limiter, api: Api, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = make(limiter["tokens"])
    api.answers = [Answer(429, {"Retry-After": "300"}, b"no")]
    assert client.get() == (429, b"no")
    other = Limiter(redis_url)
    refused = other["tokens"].try_acquire()
    assert 200 < (refused.retry_after or 0) <= 300
    assert limiter["tokens", "one"].try_acquire().retry_after  # all keys, as the call had none
    with pytest.raises(Throttled):
        client.get()
    assert len(api.paths) == 1
    logged = [record.message for record in caplog.records if "a pause" in record.message]
    assert logged == ["The API behind 'tokens' asks for a pause: no calls for 300.000 s"]
    other.store.close()


@http
def test_a_refusal_stops_its_key_only(make: Make, limiter: Limiter, api: Api) -> None:
    client = make(lambda request: limiter["tokens", request.headers["x-account"]])
    api.answers = [Answer(503, {"Retry-After": "60"})]
    client.get(**{"x-account": "a"})
    assert not limiter["tokens", "a"].try_acquire()
    client.get(**{"x-account": "b"})


@pytest.mark.parametrize("make", [each for each in HTTP if each is not Urllib3], indirect=True)
def test_a_refusal_whose_body_cannot_be_read_stops_all_the_same(
    make: Make, limiter: Limiter, api: Api
) -> None:
    """Of urllib3, there is no response then, as it reads bodies itself."""
    client = make([limiter["tokens"], limiter["pool"]])
    api.answers = [Answer(429, {"Retry-After": "300", "Content-Encoding": "gzip"}, b"no gzip")]
    with pytest.raises(Exception, match=r"content-encoding|decompressing"):
        client.get()
    assert 200 < (limiter["tokens"].peek().retry_after or 0) <= 300
    limiter["pool"].resume()
    assert limiter["pool"].peek(0).remaining == 2


@every
def test_a_refusal_that_does_not_say_for_how_long(make: Make, limiter: Limiter, api: Api) -> None:
    client = make(limiter["tokens"])

    def seconds_of_stop() -> float:
        limiter["tokens"].resume()
        api.answers = [Answer(429)]
        client.get()
        return limiter["tokens"].peek().retry_after or 0

    # Other processes may delay some of the looks until it has ended, but not all.
    assert any(0 < seconds_of_stop() <= 1 for _ in range(5))


@http
def test_what_the_api_says_is_left_tightens(make: Make, limiter: Limiter, api: Api) -> None:
    client = make(limiter["tokens"])
    api.answers = [
        Answer(200, {"RateLimit": '"default";r=50;t=30'}),
        Answer(200, {"X-RateLimit-Remaining": "900"}),
        Answer(200, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "2000"}),
    ]
    client.get()
    assert limiter["tokens"].peek(0).remaining == 50
    client.get()
    assert limiter["tokens"].peek(0).remaining == 49
    client.get()
    assert 1900 < (limiter["tokens"].peek().retry_after or 0) <= 2000


@http
def test_of_what_is_left_the_quantity_of_the_limit_counts(
    make: Make, limiter: Limiter, api: Api
) -> None:
    headers = {"x-ratelimit-remaining-requests": "3", "x-ratelimit-remaining-tokens": "700"}
    api.answers = [Answer(200, headers)]
    make({"tokens": limiter["tokens"]}, profile=OPENAI).get()
    assert limiter["tokens"].peek(0).remaining == 700


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "-5"},
        {"Retry-After": "nan"},
        {"RateLimit": '"x";r=-3;t=5', "X-RateLimit-Remaining": "NaN"},
        {"X-RateLimit-Remaining": "9" * 400},
    ],
)
@pytest.mark.parametrize("make", [Requests], indirect=True)
def test_hostile_headers_are_ignored_with_a_line(
    make: Make,
    limiter: Limiter,
    api: Api,
    headers: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = make(limiter["tokens"])
    api.answers = [Answer(503, headers), Answer(503, headers)]
    client.get()
    client.get()
    assert limiter["tokens"].peek(0).remaining == 998
    odd = [record.message for record in caplog.records if "Odd answer" in record.message]
    assert len(odd) == 1
    assert "'tokens'" in odd[0]


@pytest.mark.parametrize("make", [Requests], indirect=True)
def test_a_year_from_now_is_an_hour(make: Make, limiter: Limiter, api: Api) -> None:
    api.answers = [Answer(429, {"Retry-After": "31536000"})]
    make(limiter["tokens"]).get()
    assert 3500 < (limiter["tokens"].peek().retry_after or 0) <= 3600


@http
def test_a_slot_is_held_until_the_body_was_read_or_closed(make: Make, limiter: Limiter) -> None:
    client = make(limiter["pool"])
    client.get()
    assert limiter["pool"].peek(0).remaining == 2
    with client.streamed() as body:
        body.read()
    until = time.monotonic() + 10
    while limiter["pool"].peek(0).remaining != 2:
        assert time.monotonic() < until
    with client.streamed():
        pass
    while limiter["pool"].peek(0).remaining != 2:
        assert time.monotonic() < until
    with limiter["pool"].slot(), limiter["pool"].slot(), pytest.raises(Throttled):
        client.get()


@http
def test_the_body_of_an_error_is_streamed(make: Make, limiter: Limiter, api: Api) -> None:
    api.answers = [Answer(404, {"Content-Encoding": "gzip"}, gzip.compress(b"not there"))]
    with make(limiter["pool"]).streamed() as body:
        assert b"".join(body.pieces) == b"not there"
    assert limiter["pool"].peek(0).remaining == 2


@every
def test_what_a_call_was_worth_and_its_slot(make: Make, limiter: Limiter, api: Api) -> None:
    api.answers = [Answer(200, {}, b'{"used": 1}')] * 4
    client = make(limiter["pool"], usage=used)
    for _ in range(4):
        client.get()
    assert limiter["pool"].peek(0).remaining == 2


@http
def test_of_several_limits_each_learns_of_its_own_quantity(
    make: Make, limiter: Limiter, api: Api
) -> None:
    headers = {"x-ratelimit-remaining-requests": "1", "x-ratelimit-remaining-tokens": "700"}
    limits = {"requests": limiter["api"], "tokens": limiter["tokens"], "mails": limiter["mail"]}
    refusal = {"error": {"type": "tokens", "code": "rate_limit_exceeded"}}
    api.answers = [
        Answer(200, headers),
        Answer(429, {"Retry-After": "9"}, json.dumps(refusal).encode()),
    ]
    client = make(limits, profile=OPENAI)
    client.get()
    assert [limit.peek(0).remaining for limit in limits.values()] == [1, 700, 1]
    client.get()
    stopped = [bool(limit.peek(0).retry_after) for limit in limits.values()]
    assert stopped == [False, True, False]


@pytest.mark.parametrize("make", [Requests], indirect=True)
def test_a_slot_is_held_while_a_body_is_streamed(make: Make, limiter: Limiter, api: Api) -> None:
    api.answers = [Answer(200, {}, b"x" * 10_000_000)]
    with make(limiter["pool"]).streamed():
        assert limiter["pool"].peek(0).remaining == 1
    assert limiter["pool"].peek(0).remaining == 2


@every
def test_a_call_that_fails_gives_its_slot_back(make: Make, limiter: Limiter, api: Api) -> None:
    client = make(limiter["pool"])
    api.close()
    with pytest.raises(Exception, match=r"(?i)connect|refused"):
        client.get()
    assert limiter["pool"].peek(0).remaining == 2


def used(answer: Any) -> Any:
    """Return the cost that an answer states: a document, or the response of a function."""
    found = answer if isinstance(answer, dict) else json.loads(answer.content)
    return found["used"]


@every
def test_what_a_call_was_worth_is_settled(
    make: Make, limiter: Limiter, api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    client = make(limiter["tokens"], cost=400, usage=used)
    api.answers = [Answer(200, {}, b'{"used": 150}'), Answer(200, {}, b'{"used": 500}')]
    client.get()
    assert limiter["tokens"].peek(0).remaining == 850
    client.get()
    assert limiter["tokens"].peek(0).remaining == 350
    api.answers = [Answer(200, {}, b"no word about it")]
    with caplog.at_level(logging.WARNING):
        with pytest.raises(Throttled):
            client.get()
        limiter["tokens"].reset()
        assert client.get() == (200, b"no word about it")
    assert limiter["tokens"].peek(0).remaining == 600
    assert "its estimate stands" in caplog.text


@every
def test_what_was_refused_was_worth_nothing(make: Make, limiter: Limiter, api: Api) -> None:
    api.answers = [Answer(429, {"Retry-After": "0"})]
    make(limiter["tokens"], cost=400, usage=used).get()
    assert limiter["tokens"].peek(0).remaining == 1000


@every
def test_an_adaptive_limit_hears_of_every_answer(make: Make, limiter: Limiter, api: Api) -> None:
    client = make(limiter["moves"])
    for _ in range(50):
        limiter["moves"].learn(Feedback(refused=True, stop=0))
    slow = limiter["moves"].peek(100).retry_after
    limiter["moves"].try_acquire(10)
    full = limiter["moves"].peek(0).reset_after
    client.get()
    time.sleep(0.2)
    client.get()
    assert limiter["moves"].peek(0).reset_after < full + 0.3
    assert slow == 0.0
    for _ in range(5):  # each in a row stops it for longer
        limiter["moves"].learn(Feedback(refused=True))
    limiter["moves"].resume()
    api.answers = [Answer(429), Answer(200), Answer(429)]
    client.get()
    assert 1.5 < (limiter["moves"].peek().retry_after or 0) <= 2.1
    limiter["moves"].resume()
    client.get()  # ends the row
    client.get()
    assert (limiter["moves"].peek().retry_after or 0) <= 0.2


@every
def test_adaptive_slots_follow_the_answers(make: Make, limiter: Limiter, api: Api) -> None:
    """A request has its slot while the limit learns from its answer."""
    client, numbers = make(limiter["learned"]), []
    api.answers = [Answer(200), Answer(429), Answer(429), Answer(401), Answer(429), Answer(429)]
    for _ in range(6):
        client.get()
        limiter["learned"].resume()
        numbers.append(limiter["learned"].peek().remaining)
    assert [limiter["learned"].status().usage[0].used, *numbers] == [0, 10, 7, 4, 4, 2, 2]


def check_row(client: Client, limiter: Limiter, api: Api) -> None:
    """Check the stops after two refusals, a success, and a refusal."""
    stops = []
    for _ in api.answers[:]:
        client.get()
        stops.append(limiter["tokens"].peek(0).retry_after or 0)
        limiter["tokens"].resume()
    assert stops[1] > 1.05
    assert stops[2] == 0
    assert 0.5 < stops[3] <= 1


@every
def test_the_first_success_after_refusals_ends_their_row(
    make: Make, limiter: Limiter, api: Api
) -> None:
    """It is reported although the limit is not adaptive."""
    client = make(limiter["tokens"])
    api.answers = [Answer(429), Answer(429), Answer(200), Answer(429)]
    check_row(client, limiter, api)


@http
def test_the_success_of_another_key_does_not_end_a_row(
    make: Make, limiter: Limiter, api: Api
) -> None:
    client = make(lambda request: limiter["tokens", request.headers["x-account"]])
    api.answers = [Answer(429), Answer(200), Answer(200), Answer(429)]
    for account in "abaa":
        limiter["tokens", account].resume()
        client.get(**{"x-account": account})
    assert 0.5 < (limiter["tokens", "a"].peek(0).retry_after or 0) <= 1


@http
def test_refusals_that_only_bodies_tell_are_a_row(make: Make, limiter: Limiter, api: Api) -> None:
    refused = Answer(200, {}, b'{"errors": [{"type": "RATE_LIMITED"}]}')
    client = make(limiter["tokens"], profile=GITHUB)
    api.answers = [refused, refused, Answer(200), refused]
    check_row(client, limiter, api)


@http
def test_a_refusal_by_one_of_three_quotas_lowers_only_its_rate(
    make: Make, limiter: Limiter, api: Api
) -> None:
    names = ("rpm", "tpm", "input")
    for name in names:
        limiter[name].define("adaptive 10..1000/s burst 1000")
    quantities = zip(("requests", "tokens", "input_tokens"), names, strict=True)
    limits = {quantity: limiter[name] for quantity, name in quantities}
    refusal = {"error": {"type": "tokens", "code": "rate_limit_exceeded"}}
    api.answers = [Answer(429, {}, json.dumps(refusal).encode()), Answer(503), Answer(401)]
    client = make(limits, profile=OPENAI)

    def rates() -> list[float]:
        return [limiter[name].status().usage[0].share for name in names]

    client.get()
    assert rates() == [1.0, 0.93, 1.0]
    for _ in range(2):  # an overload, and a revoked key
        limiter.resume_all()
        client.get()
        assert rates() == [1.0, 0.93, 1.0]


@pytest.mark.thorough
@every
def test_without_the_server_of_the_limits(make: Make, own_server: Server, api: Api) -> None:
    limiter = Limiter(own_server.url, LIMITS)
    closed, opened = make(limiter["api"]), make(limiter["open"])
    closed.get()
    own_server.stop()
    with pytest.raises(StoreUnavailableError):
        closed.get()
    assert opened.get() == (200, b"{}")
    assert opened.get() == (200, b"{}")
    assert len(api.paths) == 3
    limiter.store.close()


@pytest.mark.parametrize("make", [Requests], indirect=True)
def test_what_is_wrong_is_said_at_once(make: Make, limiter: Limiter, redis_url: str) -> None:
    other = Limiter(redis_url, LIMITS)
    for limit, options, why in (
        ("api", {}, "'api' is not a limit of a limiter, as .*; allowed: such as throttle"),
        ([], {}, "no limit is given; allowed"),
        (
            [limiter["api"], "mail"],
            {},
            "'mail' is not a limit of a limiter, as .*; allowed: such as",
        ),
        (
            [limiter["api"], other["mail"]],
            {},
            "'mail' is of another limiter than 'api'; allowed: limits of one",
        ),
        ([limiter["api"], limiter["api"]], {}, "'api' is named twice"),
        (
            {"requests": limiter["api"], "tokens": limiter["api", "a key"]},
            {},
            "limit 'api' counts 'requests' and 'tokens'; allowed: one quantity",
        ),
        ({"": limiter["api"]}, {}, "a quantity must be text such as 'tokens', not ''"),
        ({}, {}, "no limit is given; allowed"),
        (limiter["api"], {"usage": 3}, "usage must be callable, not 3"),
        (limiter["api"], {"max_wait": -1}, "max_wait of -1 is not allowed"),
        (limiter["api"], {"cost": 0}, "cost 0 is not allowed"),
        (limiter["api"], {"profile": "github"}, "profile must be a Profile such as .*, not 'git"),
    ):
        with pytest.raises(ValueError, match=why.replace("[", r"\[")):
            make(limit, **options)
    other.store.close()
    with pytest.raises(UnknownLimitError):
        make(limiter["nobody"]).get()


def test_a_coroutine_function_is_wrapped_as_one(limiter: Limiter) -> None:
    async def twice(number: int) -> int:
        return 2 * number

    async def call() -> list[int]:
        wrapped = wrap(lambda number: limiter["api", number], twice)
        found = [await wrapped(1), await wrapped(1), await wrapped(2)]
        await limiter.store.aclose()
        return found

    assert asyncio.run(call()) == [2, 2, 4]
    assert limiter["api", 1].peek(0).remaining == 1


def test_key_and_cost_of_a_function_come_from_its_arguments(limiter: Limiter) -> None:
    def call(account: str, *, units: int = 1) -> tuple[str, int]:
        return account, units

    wrapped = wrap(
        lambda account, **_: limiter["mail", account],
        call,
        cost=lambda *_, units=1, **__: units,
    )
    assert wrapped("a", units=2) == ("a", 2)
    assert wrapped(account="b") == ("b", 1)
    assert limiter["mail", "a"].peek(0).remaining == 0
    assert limiter["mail", "b"].peek(0).remaining == 1


def test_a_function_that_gives_what_is_to_be_awaited(limiter: Limiter) -> None:
    """The slot is held until the awaitable is done."""

    async def held() -> int:
        return limiter["pool"].peek(0).remaining

    def call() -> Any:
        return held()

    async def calls() -> int:
        found: int = await wrap(limiter["pool"], call)()
        await limiter.store.aclose()
        return found

    assert asyncio.run(calls()) == 1
    assert limiter["pool"].peek(0).remaining == 2


@pytest.mark.parametrize("kind", [AsyncHttpx, Aiohttp])
def test_a_call_that_is_cancelled_again_and_again_gives_its_slot_back(
    kind: type[Looped], limiter: Limiter, api: Api
) -> None:
    client = kind(api.url, limiter["pool"])

    async def cancelled() -> None:
        for moment in range(20):
            call = asyncio.ensure_future(client.asked())
            await asyncio.sleep(moment * 0.0002)
            while not call.done():
                call.cancel()
                await asyncio.sleep(0)
            with suppress(asyncio.CancelledError):
                await call

    async def given_back() -> None:
        until = time.monotonic() + 10
        while (await limiter["pool"].apeek(0)).remaining != 2:
            assert time.monotonic() < until
            await asyncio.sleep(0.01)  # the release may need an iteration of the loop

    client.do(cancelled())
    client.do(given_back())
    assert client.get() == (200, b"{}")  # it has a connection, too
    client.close()


def test_what_cannot_be_wrapped(limiter: Limiter) -> None:
    with pytest.raises(LimitValueError, match="a function to wrap must be callable, not 3"):
        wrap(limiter["api"], 3)  # type: ignore[type-var]  # that is the point
    with pytest.raises(LimitValueError, match="answer must be callable, not 'x'"):
        wrap(limiter["api"], print, answer="x")  # type: ignore[arg-type]  # that is the point


async def letters() -> AsyncIterator[str]:
    yield "a"
    yield "b"


@pytest.mark.parametrize("options", [{}, {"usage": lambda _: {}}], ids=["plain", "usage"])
def test_a_slot_is_held_until_the_items_of_a_stream_have_been_read(
    limiter: Limiter, options: dict[str, Any]
) -> None:
    items = wrap(limiter["pool"], lambda: iter("ab"), **options)()
    left = [limiter["pool"].peek(0).remaining for _ in items]
    assert [*left, limiter["pool"].peek(0).remaining] == [1, 1, 2]

    async def read() -> None:
        items = wrap(limiter["pool"], letters, **options)()
        left = [limiter["pool"].peek(0).remaining async for _ in items]
        assert left == [1, 1]
        await limiter.store.aclose()

    asyncio.run(read())
    assert limiter["pool"].peek(0).remaining == 2


def test_a_slot_is_held_until_a_stream_is_closed(limiter: Limiter) -> None:
    def numbers() -> Iterator[int]:
        yield from range(9)

    items: Any = wrap(limiter["pool"], numbers)()
    assert next(items) == 0
    assert limiter["pool"].peek(0).remaining == 1
    items.close()
    assert limiter["pool"].peek(0).remaining == 2

    with wrap(limiter["pool"], open)(__file__, encoding="utf-8") as file:
        assert file.readline()
        assert limiter["pool"].peek(0).remaining == 1
    assert limiter["pool"].peek(0).remaining == 2

    async def aclose() -> None:
        items: Any = wrap(limiter["pool"], letters)()
        assert await anext(items) == "a"
        assert limiter["pool"].peek(0).remaining == 1
        await items.aclose()
        await limiter.store.aclose()

    asyncio.run(aclose())
    assert limiter["pool"].peek(0).remaining == 2


def test_a_stream_that_cannot_be_closed_releases_its_slot(limiter: Limiter) -> None:
    class Stream:
        def __iter__(self) -> Iterator[str]:
            return self

        def __next__(self) -> str:
            return "a"

        def close(self) -> None:
            raise OSError("broken pipe")

    items: Any = wrap(limiter["pool"], Stream)()
    with pytest.raises(OSError, match="broken pipe"):
        items.close()
    assert limiter["pool"].peek(0).remaining == 2


def test_an_error_has_no_usage(limiter: Limiter, caplog: pytest.LogCaptureFixture) -> None:
    class Failed(Exception):  # noqa: N818  # as slack_sdk raises it
        status_code = 200

    def call() -> dict[str, int]:
        raise Failed

    with pytest.raises(Failed):
        wrap(limiter["tokens"], call, cost=400, usage=lambda result: result["used"])()
    assert "Traceback" not in caplog.text
    assert limiter["tokens"].peek(0).remaining == 600


@pytest.mark.parametrize("code", [-32005, 4, 10_029, True])
def test_a_code_of_a_vendor_is_no_status(code: int) -> None:
    class Failed(Exception):  # noqa: N818  # as above
        response = SimpleNamespace(status_code=429, headers={})

        def __init__(self) -> None:
            self.code = code

    assert clients.of_error(Failed()).status == 429


def test_a_refusal_told_by_a_function(limiter: Limiter) -> None:
    def call() -> None:
        raise OSError(700)

    def answer(outcome: Any) -> clients.ApiAnswer:
        return clients.ApiAnswer(429, {"retry-after": str(outcome.args[0])})

    with pytest.raises(OSError, match="700"):
        wrap(limiter["tokens"], call, answer=answer)()
    assert 600 < (limiter["tokens"].peek().retry_after or 0) <= 700
