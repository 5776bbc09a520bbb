"""The SDKs of Stripe, Slack and GitHub against servers that enforce what the vendors document.

Each is limited by ``wrap()`` around the one method through which all of its requests go.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import aiohttp
import pytest
import stripe
from github import Auth, Github
from github.GithubException import RateLimitExceededException
from slack_sdk.errors import SlackApiError
from slack_sdk.web import WebClient
from slack_sdk.web.async_client import AsyncWebClient

from celery_throttle import Limiter, Throttled
from celery_throttle.clients.aiohttp import ThrottledMiddleware
from celery_throttle.clients.answer import ApiAnswer
from celery_throttle.clients.profiles import GITHUB, SLACK, STRIPE
from celery_throttle.clients.wrapped import wrap
from tests.clients.vendors import Reply, Vendor

LIMITS = {"api": "1000/d burst 5", "rate": "18/s burst 1"}


class Service(Vendor):
    """One quota of requests, whatever they are."""

    def request_of(self, http: BaseHTTPRequestHandler, body: bytes) -> dict[str, Any]:
        return {"path": http.path, "body": body}

    def charges(self, request: dict[str, Any]) -> dict[str, float]:  # noqa: ARG002
        return {"requests": 1}


class Stripe(Service):
    def refusal(self, name: str, wait: float) -> Reply:  # noqa: ARG002
        error = {"type": "invalid_request_error", "code": "rate_limit", "message": "no"}
        return Reply(429, {"error": error}, {"Stripe-Rate-Limited-Reason": "endpoint-rate"})

    def success(self, request: dict[str, Any]) -> Reply:  # noqa: ARG002
        return Reply(200, {"id": "re_1", "object": "refund", "status": "succeeded"})


class Slack(Service):
    def refusal(self, name: str, wait: float) -> Reply:  # noqa: ARG002
        again = {"Retry-After": str(int(wait) + 1)}
        return Reply(429, {"ok": False, "error": "ratelimited"}, again)

    def success(self, request: dict[str, Any]) -> Reply:  # noqa: ARG002
        return Reply(200, {"ok": True, "ts": "1"})


class GitHub(Service):
    def headers(self, wait: float) -> dict[str, str]:
        bucket = self.buckets["requests"]
        return {
            "X-RateLimit-Limit": str(int(bucket.size)),
            "X-RateLimit-Remaining": str(max(0, int(bucket.left))),
            "X-RateLimit-Reset": str(int(time.time() + wait) + 1),
        }

    def refusal(self, name: str, wait: float) -> Reply:  # noqa: ARG002
        text = "API rate limit exceeded for user ID 1."
        return Reply(403, {"message": text}, self.headers(wait))

    def success(self, request: dict[str, Any]) -> Reply:  # noqa: ARG002
        return Reply(200, {"login": "octocat"}, self.headers(3600))


def stripe_call(api: Vendor, limits: Any, **options: Any) -> Callable[[], Any]:
    http = stripe.RequestsClient()
    http.request = wrap(  # type: ignore[method-assign]  # through which each attempt goes
        limits,
        http.request,
        profile=STRIPE,
        answer=lambda answer: (
            ApiAnswer(answer[1], answer[2], lambda: answer[0])
            if isinstance(answer, tuple)
            else None
        ),
        **options,
    )
    client = stripe.StripeClient("sk_x", http_client=http, base_addresses={"api": api.url})
    return lambda: client.v1.refunds.create({"charge": "ch_1"})


def slack_call(api: Vendor, limits: Any, **options: Any) -> Callable[[], Any]:
    client = WebClient("xoxb", base_url=f"{api.url}/api/")
    client.api_call = wrap(limits, client.api_call, profile=SLACK, **options)  # type: ignore[method-assign]
    return lambda: client.chat_postMessage(channel="c", text="hi")


def github_call(api: Vendor, limits: Any, **options: Any) -> Callable[[], Any]:
    client = Github(
        auth=Auth.Token("x"), base_url=api.url, retry=None, seconds_between_requests=None
    )
    client.requester.requestJson = wrap(  # type: ignore[method-assign]
        limits,
        client.requester.requestJson,
        profile=GITHUB,
        answer=lambda answer: (
            ApiAnswer(answer[0], answer[1], lambda: answer[2])
            if isinstance(answer, tuple)
            else None
        ),
        **options,
    )
    return lambda: client.get_user("octocat").login


SDKS = {
    "stripe": (Stripe, stripe_call, stripe.RateLimitError),
    "slack_sdk": (Slack, slack_call, SlackApiError),
    "PyGithub": (GitHub, github_call, RateLimitExceededException),
}


@pytest.fixture(params=SDKS)
def sdk(request: pytest.FixtureRequest) -> Any:
    return SDKS[request.param]


@pytest.fixture
def api(sdk: Any) -> Iterator[Vendor]:
    api = sdk[0]({"requests": 1_200}, burst=0.3)
    yield api
    api.close()


def test_what_the_limit_refuses_is_not_sent(sdk: Any, api: Vendor, limiter: Limiter) -> None:
    call = sdk[1](api, limiter["api"])
    for _ in range(5):
        call()
    with pytest.raises(Throttled):
        call()
    assert api.statuses() == [200] * 5


def test_the_quota_is_used_and_nothing_is_refused(sdk: Any, api: Vendor, limiter: Limiter) -> None:
    call = sdk[1](api, limiter["rate"], max_wait=10)
    for _ in range(25):
        call()
    assert api.statuses() == [200] * 25


def test_a_refusal_pauses_the_limit(sdk: Any, api: Vendor, limiter: Limiter) -> None:
    call = sdk[1](api, limiter["api"])
    api.replies = [api.refusal("requests", 0)]
    with pytest.raises(sdk[2]):
        call()
    assert api.statuses() != [200]
    with pytest.raises(Throttled):
        call()


def test_a_refused_call_is_made_again(sdk: Any, api: Vendor, limiter: Limiter) -> None:
    call = sdk[1](api, limiter["api"], retry_refused=2)
    api.replies = [api.refusal("requests", 0)]
    call()
    assert len(api.log) == 2


async def test_an_asyncio_client_of_slack_sends_by_a_session_of_aiohttp(limiter: Limiter) -> None:
    api = Slack({"requests": 60_000})
    api.replies = [api.refusal("requests", 0)]
    middleware = ThrottledMiddleware(limiter["api"], profile=SLACK, retry_refused=1)
    async with aiohttp.ClientSession(middlewares=[middleware]) as session:
        client = AsyncWebClient("xoxb", base_url=f"{api.url}/api/", session=session)
        assert (await client.chat_postMessage(channel="c", text="hi"))["ts"] == "1"
    assert api.statuses() == [429, 200]
    await limiter.store.aclose()
    api.close()


def test_slack_s_header_with_several_values_is_read() -> None:
    assert ApiAnswer(429, {"Retry-After": ["9"]}).headers == {"retry-after": "9"}
