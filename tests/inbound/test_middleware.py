"""Both middlewares: header fields, answers, limits, outages."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from celery_throttle import Throttle
from celery_throttle.errors import (
    ConfigurationError,
    CostError,
    LimitError,
    LimitFunctionError,
    LimitValueError,
    StoreError,
    ThrottleError,
    UnknownLimitError,
)
from celery_throttle.inbound import ThrottledWSGI, by_address, by_header
from celery_throttle.limiter.limiter import Limiter
from celery_throttle.testing import ManualClock
from tests.inbound.sites import HERE, Asked, MakeSite, WSGISite, make_sites
from tests.protocol import START
from tests.servers.server import Server

LIMITS: dict[str, Any] = {
    "web": "10/m burst 3",
    "user": "1/s burst 2",
    "even": "1/s",
    "queue": "1/s burst 5 using leaky-queue",
    "busy": "2 at once",
    "both": ["10/m burst 3", "2 at once"],
    "few": "1/s max-keys 1",
}
pytestmark = pytest.mark.usefixtures("clock")

TOLD = ("RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")


@pytest.fixture(params=["wsgi", "asgi"])
def make_site(request: pytest.FixtureRequest, limiter: Limiter) -> Iterator[MakeSite]:
    yield from make_sites(request.param, limiter)


# Answers


def test_what_is_allowed_is_passed_on_and_told(
    make_site: MakeSite, limiter: Limiter, clock: ManualClock
) -> None:
    site = make_site(limiter["web"])
    reply = site.ask()
    assert (reply.status, reply.body) == (200, b"hello")
    assert reply.about(*TOLD) == ['"web";r=2;t=6', "3", "2", "6"]
    assert reply.about("RateLimit-Policy", "Retry-After") == ['"web";q=10;w=60', None]
    assert site.seen[0].remaining == 2
    clock.advance(0.5)
    assert site.ask().about(*TOLD) == ['"web";r=1;t=6', "3", "1", "12"]  # 5.5 and 11.5 s


def test_what_is_refused_is_answered_with_429(
    make_site: MakeSite, limiter: Limiter, clock: ManualClock
) -> None:
    site = make_site(limiter["web"])
    assert [site.ask().status for _ in range(3)] == [200] * 3
    reply = site.ask()
    assert reply.status == 429
    assert reply.about(*TOLD) == ['"web";r=0;t=6', "3", "0", "18"]
    assert reply.about("Retry-After", "Cache-Control") == ["6", "no-store"]
    assert reply.about("Content-Type", "Content-Length") == [
        "application/problem+json",
        str(len(reply.body)),
    ]
    problem = json.loads(reply.body)
    assert problem["status"] == 429
    assert problem["violated-policies"] == ["web"]
    assert len(reply.body) < 300
    assert len(site.seen) == 3
    clock.advance(6)
    assert site.ask().status == 200


def test_retry_after_is_rounded_up(
    make_site: MakeSite, limiter: Limiter, clock: ManualClock
) -> None:
    site = make_site(limiter["even"])
    site.ask()
    clock.advance(0.999)
    assert site.ask().about("Retry-After", "X-RateLimit-Reset") == ["1", "1"]
    limiter["even"].pause(1.5)
    assert site.ask().about("Retry-After", "X-RateLimit-Reset") == ["2", "2"]


@pytest.mark.parametrize("max_wait", [0.0, 5.0])
def test_a_limit_that_is_paused_until_resumed(
    make_site: MakeSite, limiter: Limiter, max_wait: float
) -> None:
    """Nobody knows when that is, so clients come again in a minute."""
    site = make_site(limiter["web"], max_wait=max_wait)
    limiter["web"].pause(None)
    refused = site.ask()
    assert refused.status == 429
    assert refused.about("Retry-After", "X-RateLimit-Reset") == ["60", "60"]
    limiter["web"].resume()
    assert site.ask().status == 200


def test_what_the_app_says_itself_is_left_as_it_is(make_site: MakeSite, limiter: Limiter) -> None:
    site = make_site(limiter["web"])
    site.own = [("x-ratelimit-limit", "7"), ("RATELIMIT", "mine")]
    assert site.ask().about(*TOLD) == ["mine", "7", "2", "6"]


def test_headers_may_be_left_off(make_site: MakeSite, limiter: Limiter) -> None:
    site = make_site(limiter["even"], headers=False)
    assert site.ask().about(*TOLD, "RateLimit-Policy") == [None] * 5
    refused = site.ask()
    assert refused.about(*TOLD, "RateLimit-Policy", "Retry-After") == [None] * 5 + ["1"]
    assert "even" not in refused.body.decode()


def test_a_policy_that_is_not_in_force_is_not_told(make_site: MakeSite, limiter: Limiter) -> None:
    site = make_site(limiter["web"])
    limiter["web"].define("10/m burst 7")
    assert site.ask().about("RateLimit-Policy", *TOLD) == [None, '"web";r=6;t=6', "7", "6", "6"]


# Limits, keys and costs


def test_several_limits_all_have_to_allow(make_site: MakeSite, limiter: Limiter) -> None:
    site = make_site([limiter["web"], limiter["user"]])
    reply = site.ask()
    assert reply.about(*TOLD) == ['"user";r=1;t=6', "2", "1", "6"]
    assert reply.about("RateLimit-Policy") == ['"web";q=10;w=60, "user";q=1;w=1']
    site.ask()
    refused = site.ask()
    assert refused.about("RateLimit", "Retry-After") == ['"user";r=0;t=1', "1"]
    assert limiter["web"].peek(0).remaining == 1  # a refusal took nothing of it


def test_a_key_splits_the_limits_that_have_none(make_site: MakeSite, limiter: Limiter) -> None:
    site = make_site([limiter["even"], limiter["web", "all"]], key=by_address())
    assert site.ask().status == 200
    assert site.ask().status == 429
    assert site.ask(Asked(address="203.0.113.10")).status == 200
    assert not limiter["even", "203.0.113.9"].peek()
    assert limiter["web", "all"].peek(0).remaining == 1


def test_no_key_is_no_limit(make_site: MakeSite, limiter: Limiter) -> None:
    site = make_site([limiter["even"], limiter["web", "all"]], key=lambda _: None)
    for _ in range(5):
        reply = site.ask()
        assert (reply.status, reply.about(*TOLD)) == (200, [None] * 4)
    assert site.seen == [None] * 5
    assert limiter["web", "all"].peek(0).remaining == 3


def test_keys_by_the_name_of_the_limit(make_site: MakeSite, limiter: Limiter) -> None:
    def key(request: Any) -> str | None:
        address = by_address()(request)
        return None if address == HERE else str(address)

    site = make_site([limiter["web"], limiter["even"]], key={"even": key})
    assert [site.ask().status for _ in range(2)] == [200, 200]  # one limit less for these
    stranger = Asked(address="198.51.100.1")
    assert site.ask(stranger).status == 200
    assert site.ask().about("RateLimit") == ['"web";r=0;t=6']
    assert not limiter["even", "198.51.100.1"].peek()


def test_a_client_that_sends_a_fixed_key_is_counted_once(
    make_site: MakeSite, limiter: Limiter
) -> None:
    site = make_site([limiter["web"], limiter["web", "eu"]], key=by_header("X-Region"))
    assert site.ask(Asked(headers=[("X-Region", "eu")])).status == 200
    assert limiter["web", "eu"].peek(0).remaining == 2


def test_limits_of_a_request(make_site: MakeSite, limiter: Limiter) -> None:
    """Each plan has limits, or none. Keys and costs are for those that the function returns."""
    plans = {
        "free": [limiter["even"], None],
        "paid": (limiter["web"], limiter["user", "paid"]),
        "own": None,
        "test": [],
    }
    site = make_site(
        lambda request: plans[request["plan"]], key={"even": by_address()}, cost={"user": 2}
    )

    def ask(plan: str) -> tuple[int, str | None]:
        reply = site.ask(Asked(more={"plan": plan}))
        return reply.status, reply.about("RateLimit-Policy")[0]

    assert [ask("free"), ask("free")[0]] == [(200, '"even";q=1;w=1'), 429]
    assert not limiter["even", HERE].peek()
    assert [ask("paid"), ask("paid")[0]] == [(200, '"web";q=10;w=60, "user";q=1;w=1'), 429]
    assert limiter["web"].peek(0).remaining == 2
    assert [ask("own"), ask("test")] * 2 == [(200, None)] * 4


def test_costs(make_site: MakeSite, limiter: Limiter) -> None:
    assert make_site(limiter["web"], cost=2).ask().about("X-RateLimit-Remaining") == ["1"]
    refused = make_site(limiter["web"], cost=2).ask()
    assert refused.about("RateLimit", "Retry-After") == ['"web";r=1;t=6', "6"]
    both = [limiter["web", "a"], limiter["user"]]
    make_site(both, cost={"web": 3}).ask()
    assert [limiter["web", "a"].peek(0).remaining, limiter["user"].peek(0).remaining] == [0, 1]
    site = make_site(limiter["web", "b"], cost=lambda request: 3 if request else 1)
    assert site.ask().about("X-RateLimit-Remaining") == ["0"]
    # What a key leaves out of account has no cost either.
    exempt = make_site(both, key={"user": lambda _: None}, cost={"user": 2, "web": 1})
    assert exempt.ask().status == 429


def test_mistakes_of_functions_are_raised(make_site: MakeSite, limiter: Limiter) -> None:
    with pytest.raises(CostError, match="burst is 3"):
        make_site(limiter["web"], cost=lambda _: 4).ask()
    with pytest.raises(LimitFunctionError, match=r"cost function .* returned 0: cost 0"):
        make_site(limiter["web"], cost=lambda _: 0).ask()
    with pytest.raises(LimitFunctionError, match=r"key function .* returned <object object"):
        make_site(limiter["web"], key=lambda _: object()).ask()
    with pytest.raises(LimitFunctionError, match="'wbe'"):
        make_site(limiter["web"], cost=lambda _: {"wbe": 1}).ask()
    with pytest.raises(LimitFunctionError, match="returned 'web': 'web' is not a limit of"):
        make_site(lambda _: "web").ask()
    with pytest.raises(UnknownLimitError, match=r"limits function .* returned .*'wbe' is not"):
        make_site(lambda _: limiter["wbe"]).ask()
    site = make_site(limiter["web"], key=lambda request: request["plan"])
    with pytest.raises(KeyError, match="plan"):  # the framework may know what it raises
        site.ask()
    assert site.ask(Asked(more={"plan": "free"})).status == 200


def test_more_keys_than_there_may_be(make_site: MakeSite, limiter: Limiter) -> None:
    site = make_site(limiter["few"], key=by_header("X-Api-Key"))
    assert site.ask(Asked(headers=[("X-Api-Key", "one")])).status == 200
    assert site.ask(Asked(headers=[("X-Api-Key", "two")])).status == 429


def test_a_request_may_wait(make_site: MakeSite, limiter: Limiter, clock: ManualClock) -> None:
    site = make_site(limiter["even"], max_wait=1.5)
    assert [site.ask().status for _ in range(3)] == [200, 200, 200]
    assert clock.now == START + 2_000_000
    refused = make_site(limiter["even"], max_wait=0.5).ask()
    assert refused.status == 429
    assert refused.about(*TOLD) == ['"even";r=0;t=1', "1", "0", "1"]


def test_a_queue_is_waited_for_or_refused(
    make_site: MakeSite, limiter: Limiter, clock: ManualClock
) -> None:
    site = make_site(limiter["queue"])
    assert [site.ask().status for _ in range(2)] == [200, 429]
    waiting = make_site(limiter["queue"], max_wait=3)
    assert [waiting.ask().status for _ in range(2)] == [200, 200]
    assert clock.now == START + 2_000_000


# Slots; when they are given back is shown for each kind by itself.


def test_slots_are_taken_and_given_back(make_site: MakeSite, limiter: Limiter) -> None:
    site = make_site(limiter["busy"])
    for _ in range(5):
        reply = site.ask()
        assert reply.about(*TOLD) == ['"busy";r=1', "2", "1", None]
        assert reply.about("RateLimit-Policy") == ['"busy";q=2;qu="concurrent-requests"']
    with limiter["busy"].slot(), limiter["busy"].slot():
        refused = site.ask()
    assert refused.status == 429
    assert refused.about(*TOLD, "Retry-After") == ['"busy";r=0;t=1', "2", "0", "1", "1"]
    assert site.ask().status == 200


def test_slots_and_rates_together(make_site: MakeSite, limiter: Limiter) -> None:
    site = make_site([limiter["both"], limiter["user"]])
    with limiter["busy"].slot():
        assert [site.ask().status for _ in range(3)] == [200, 200, 429]
    assert limiter["both"].peek(0).remaining == 1  # a unit less for each, and no slot in use


# Outages


@pytest.fixture
def lost(own_server: Server) -> Iterator[Limiter]:
    """A limiter whose server has stopped."""
    limiter = Limiter(own_server.url, LIMITS, timeout=10)
    own_server.stop()
    yield limiter
    limiter.store.close()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["web", "busy"])
def test_without_the_server_requests_pass(
    make_site: MakeSite, lost: Limiter, own_server: Server, name: str, caplog: Any
) -> None:
    site = make_site(lost[name])
    caplog.set_level(logging.INFO, "celery_throttle.inbound")
    for _ in range(5):
        reply = site.ask()
        assert (reply.status, reply.about(*TOLD)) == (200, [None] * 4)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "cannot be reached" in caplog.text
    own_server.start()
    lost.store.breaker.close()
    assert site.ask().headers["ratelimit"]
    assert site.ask().headers["ratelimit"]
    assert [record.message for record in caplog.records][1:] == ["The limits are in force again"]


def test_or_they_are_answered_with_503(make_site: MakeSite, lost: Limiter) -> None:
    site = make_site(lost["web"], outage="closed")
    reply = site.ask()
    assert reply.status == 503
    assert reply.about("Retry-After", "Cache-Control") == ["1", "no-store"]
    assert json.loads(reply.body)["title"] == "Service Unavailable"
    assert site.seen == []


def test_a_server_that_answers_with_errors_is_as_good_as_lost(
    make_site: MakeSite, own_server: Server, caplog: Any
) -> None:
    limiter = Limiter(own_server.url, LIMITS)
    with redis.Redis.from_url(own_server.url) as client:
        client.set("{throttle}:limits", "no hash")
        assert make_site(limiter["web"]).ask().status == 200
        assert "WRONGTYPE" in caplog.text
        client.delete("{throttle}:limits")


def test_a_server_lost_while_a_slot_is_held_spoils_no_answer(
    make_site: MakeSite, own_server: Server, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    limiter = Limiter(own_server.url, LIMITS, timeout=10)
    site = make_site(limiter["busy"])
    assert site.ask().status == 200

    def fail(*_: Any) -> Any:
        raise StoreError("gone")

    monkeypatch.setattr(type(limiter.plans), "release", fail)
    assert site.ask().status == 200
    assert "gone" in caplog.text


# Errors at set-up


@pytest.mark.parametrize(
    ("limits", "options", "error", "match"),
    [
        (
            "web",
            {},
            LimitValueError,
            "'web' is not a limit of a limiter, as .*; allowed: such as",
        ),
        ([], {}, LimitValueError, "no limit is given"),
        (["web", "web"], {}, LimitValueError, "named twice"),
        (["wbe"], {}, UnknownLimitError, "'wbe' is not defined"),
        (["web"], {"key": "X-Api-Key"}, ConfigurationError, "must be callable, not 'X-Api-Key'"),
        (["web"], {"key": {"mail": str}}, LimitError, "for 'mail'; allowed: .* web"),
        (["web"], {"key": {"web": 1}}, ConfigurationError, "key of 'web' must be callable, not 1"),
        ([("web", "a")], {"key": str}, ConfigurationError, "would not be used"),
        (["web"], {"cost": 4}, CostError, "cost 4 .* at most 3"),
        (["web"], {"cost": 0}, CostError, "cost 0"),
        (["web"], {"cost": {"mail": 1}}, LimitError, "'mail'"),
        (["web"], {"outage": "local"}, ConfigurationError, "one of open, closed, not 'local'"),
        (["web"], {"max_wait": -1}, LimitValueError, "max_wait of -1"),
        (["busy"], {"lease": 0}, LimitValueError, "lease of 0 s"),
        (["web"], {"refused": 429}, ConfigurationError, "refused must be callable, not 429"),
    ],
)
def test_what_is_wrong_is_said_at_once(
    make_site: MakeSite, limits: Any, options: Any, error: type[ThrottleError], match: str
) -> None:
    limiter = Limiter("redis://127.0.0.1:1/0", LIMITS)
    if isinstance(limits, list):
        limits = [limiter[one] for one in limits]
    with pytest.raises(error, match=match):
        make_site(limits, **options)


async def _later(request: Any) -> Any:
    await asyncio.sleep(0)
    return request["later"]


@pytest.mark.parametrize("option", ["limits", "key", "cost"])
def test_async_functions_are_for_asgi(make_site: MakeSite, limiter: Limiter, option: str) -> None:
    later = {"limits": limiter["user"], "key": "ada", "cost": 2}[option]
    options: Any = {"limits": limiter["user"], option: _later}
    if make_site is WSGISite:
        with pytest.raises(ConfigurationError, match=f"{option} must not be async"):
            make_site(**options)
        site = make_site(**options | {option: lambda request: _later(request)})  # noqa: PLW0108  # it hides it
        with pytest.raises(LimitFunctionError, match="is async, but its caller blocks"):
            site.ask(Asked(more={"later": later}))
        return
    assert make_site(**options).ask(Asked(more={"later": later})).status == 200
    handle = limiter["user", "ada"] if option == "key" else limiter["user"]
    assert handle.peek(0).remaining == (0 if option == "cost" else 1)


def test_limits_of_two_limiters_are_refused(make_site: MakeSite, limiter: Limiter) -> None:
    other = Limiter("redis://127.0.0.1:1/0", LIMITS)
    with pytest.raises(LimitValueError, match="is of another limiter than"):
        make_site([limiter["web"], other["user"]])


def test_limits_of_a_celery_app(make_site: MakeSite, redis_url: str) -> None:
    throttle = Throttle(Celery("shop", broker=redis_url), {"web": "10/m"})
    site = make_site(throttle["web"])
    assert [site.ask().status for _ in range(2)] == [200, 429]
    throttle.store.close()
    nowhere = Throttle(Celery("shop", broker="amqp://"), {"web": "10/m"})
    with pytest.raises(ConfigurationError, match="throttle_url"):
        make_site(nowhere["web"])


def test_an_app_must_be_one(limiter: Limiter) -> None:
    with pytest.raises(ConfigurationError, match="app must be callable, not 'app'"):
        ThrottledWSGI("app", limiter["web"])  # type: ignore[arg-type]  # that is the mistake
