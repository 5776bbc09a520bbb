"""Profiles: what each vendor documents is read from its answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib import import_module
from math import inf, nan
from pkgutil import iter_modules
from typing import Any

import pytest

from celery_throttle.clients import profiles
from celery_throttle.clients.answer import ApiAnswer
from celery_throttle.clients.profiles.aws import AWS
from celery_throttle.clients.profiles.generic import GENERIC
from celery_throttle.clients.profiles.models import (
    ANTHROPIC,
    AZURE_OPENAI,
    DEEPSEEK,
    GOOGLE,
    GROQ,
    MISTRAL,
    OPENAI,
    TOGETHER,
)
from celery_throttle.clients.profiles.profile import Meaning, Profile, Quota, Reset
from celery_throttle.clients.profiles.reading import Reading, read
from celery_throttle.clients.profiles.services import (
    DISCORD,
    GITHUB,
    HUBSPOT,
    SALESFORCE,
    SHOPIFY,
    SLACK,
    STRIPE,
    TWILIO,
)
from tests.docs.pages import read as read_page

NOW = 1_700_000_000.0  # 2023-11-14T22:13:20Z

REFUSAL, OVERLOAD, FAILURE, ACCEPTED = (
    Meaning.REFUSAL,
    Meaning.OVERLOAD,
    Meaning.FAILURE,
    Meaning.ACCEPTED,
)


def all_profiles() -> list[Profile]:
    modules = [
        import_module(f"{profiles.__name__}.{each.name}")
        for each in iter_modules(profiles.__path__)
    ]
    found = [one for module in modules for one in vars(module).values() if isinstance(one, Profile)]
    return list({one.name: one for one in found}.values())


def reading(
    profile: Profile, status: int, headers: Mapping[str, str] | None = None, body: Any = None
) -> Reading:
    """Read an answer in which nothing is odd."""
    found = read(profile, ApiAnswer(status, headers, lambda: json.dumps(body)), NOW)
    assert found.warnings == ()
    return found


def sections() -> dict[str, str]:
    """Return the sections of the pages of vendors, by their titles."""
    pages = [read_page(f"reference/{name}.md") for name in ("vendors", "vendors-llm")]
    parts = [part for page in pages for part in re.split("^###? ", page, flags=re.MULTILINE)]
    return {title: text for title, _, text in (part.partition("\n") for part in parts)}


@pytest.mark.parametrize("profile", all_profiles(), ids=lambda one: one.name)
def test_a_page_names_the_sources_of_a_profile_and_their_day(profile: Profile) -> None:
    title = "IETF" if profile is GENERIC else profile.name
    found = [text for name, text in sections().items() if name.startswith(title)]
    assert any(re.search(r"^Sources?: .*https://.* Read 20", text, re.MULTILINE) for text in found)


@pytest.mark.parametrize("profile", all_profiles(), ids=lambda one: one.name)
def test_headers_are_written_in_lower_case(profile: Profile) -> None:
    names = [
        name for each in profile.quantities for name in (each.remaining, each.limit, each.reset)
    ]
    names += [sign.header for sign in profile.signs] + [wait.header for wait in profile.waits]
    assert names == [name.lower() for name in names]


@pytest.mark.parametrize("profile", all_profiles(), ids=lambda one: one.name)
def test_a_profile_knows_each_quantity_that_refuses(profile: Profile) -> None:
    refusing = {name for sign in profile.signs for name in sign.quantities}
    assert refusing <= set(profile.names())


RATE = {"error": {"message": "Rate limit reached", "type": "tokens", "code": "rate_limit_exceeded"}}
QUOTA = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
SECONDARY = {"message": "You have exceeded a secondary rate limit."}
PRIMARY = {"message": "API rate limit exceeded for user ID 1."}


@pytest.mark.parametrize(
    ("profile", "status", "headers", "body", "meaning", "wait"),
    [
        (GENERIC, 200, {}, None, ACCEPTED, None),
        (GENERIC, 404, {}, None, FAILURE, None),
        (GENERIC, 429, {}, None, REFUSAL, None),
        (GENERIC, 429, {"Retry-After": "7"}, None, REFUSAL, 7.0),
        (GENERIC, 403, {"Retry-After": "60"}, None, REFUSAL, 60.0),
        (GENERIC, 403, {}, None, FAILURE, None),
        (GENERIC, 503, {"Retry-After": "3"}, None, OVERLOAD, 3.0),
        (GENERIC, 503, {}, None, FAILURE, None),
        (OPENAI, 429, {"retry-after-ms": "174", "Retry-After": "1"}, RATE, REFUSAL, 0.174),
        (OPENAI, 429, {}, QUOTA, FAILURE, None),
        (OPENAI, 429, {}, QUOTA["error"], FAILURE, None),  # as the SDK's exception has it
        (OPENAI, 429, {}, {"error": {"message": "Resource Unavailable"}}, OVERLOAD, None),
        (OPENAI, 503, {"Retry-After": "2"}, {"error": {"code": "x"}}, OVERLOAD, 2.0),
        (OPENAI, 500, {}, None, FAILURE, None),
        (OPENAI, 401, {}, {"error": {"code": "invalid_api_key"}}, FAILURE, None),
        (AZURE_OPENAI, 429, {"retry-after-ms": "1500"}, {"error": {"code": "429"}}, REFUSAL, 1.5),
        (
            AZURE_OPENAI,
            429,
            {},
            {"error": {"message": "System is experiencing high demand"}},
            OVERLOAD,
            None,
        ),
        (GROQ, 498, {}, {"error": {"code": "capacity_exceeded"}}, OVERLOAD, None),
        (MISTRAL, 429, {"Retry-After": "1"}, None, REFUSAL, 1.0),
        (TOGETHER, 429, {"x-ratelimit-reset": "4"}, None, REFUSAL, 4.0),
        (DEEPSEEK, 402, {}, None, FAILURE, None),
        (
            ANTHROPIC,
            429,
            {"retry-after": "12"},
            {"type": "error", "error": {"type": "rate_limit_error"}},
            REFUSAL,
            12.0,
        ),
        (
            ANTHROPIC,
            429,
            {},
            {
                "type": "error",
                "error": {
                    "type": "rate_limit_error",
                    "details": {"error_code": "enforced_spend_limit_reached"},
                },
            },
            FAILURE,
            None,
        ),
        (ANTHROPIC, 529, {}, {"error": {"type": "overloaded_error"}}, OVERLOAD, None),
        (ANTHROPIC, 400, {}, {"error": {"type": "invalid_request_error"}}, FAILURE, None),
        (
            GOOGLE,
            429,
            {},
            {
                "error": {
                    "code": 429,
                    "status": "RESOURCE_EXHAUSTED",
                    "details": [
                        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": []},
                        {
                            "@type": "type.googleapis.com/google.rpc.RetryInfo",
                            "retryDelay": "14.3s",
                        },
                    ],
                }
            },
            REFUSAL,
            14.3,
        ),
        (
            GOOGLE,
            429,
            {},
            {"error": {"message": "Resource exhausted, please try again later."}},
            OVERLOAD,
            None,
        ),
        (AWS, 400, {}, {"Error": {"Code": "ThrottlingException"}}, REFUSAL, None),
        (AWS, 503, {}, {"Error": {"Code": "SlowDown"}}, REFUSAL, None),
        (AWS, 503, {}, {"Error": {"Code": "ServiceUnavailable"}}, OVERLOAD, None),
        (AWS, 400, {}, {"Error": {"Code": "ServiceQuotaExceededException"}}, FAILURE, None),
        (AWS, 429, {"x-amz-retry-after": "250"}, {"Error": {"Code": "New"}}, REFUSAL, 0.25),
        (STRIPE, 429, {"Stripe-Rate-Limited-Reason": "global-rate"}, None, REFUSAL, None),
        (STRIPE, 429, {}, {"error": {"code": "lock_timeout"}}, FAILURE, None),
        (STRIPE, 400, {}, {"error": {"code": "rate_limit"}}, REFUSAL, None),
        (GITHUB, 403, {"retry-after": "7"}, SECONDARY, REFUSAL, 7.0),
        (GITHUB, 403, {}, SECONDARY, REFUSAL, 60.0),
        (GITHUB, 403, {}, {"message": "Resource not accessible"}, FAILURE, None),
        (GITHUB, 200, {}, {"errors": [{"type": "RATE_LIMITED"}]}, REFUSAL, None),
        (SHOPIFY, 429, {"Retry-After": "2.0"}, None, REFUSAL, 2.0),
        (
            SHOPIFY,
            200,
            {},
            {"errors": [{"extensions": {"code": "MAX_COST_EXCEEDED"}}]},
            FAILURE,
            None,
        ),
        (SLACK, 429, {"Retry-After": "9"}, {"ok": False, "error": "ratelimited"}, REFUSAL, 9.0),
        (SLACK, 200, {}, {"ok": False, "error": "channel_not_found"}, ACCEPTED, None),
        (TWILIO, 429, {}, {"code": 20429}, REFUSAL, None),
        (HUBSPOT, 502, {}, None, OVERLOAD, None),
        (SALESFORCE, 403, {}, [{"errorCode": "REQUEST_LIMIT_EXCEEDED"}], REFUSAL, None),
        (SALESFORCE, 403, {}, [{"errorCode": "INSUFFICIENT_ACCESS"}], FAILURE, None),
        (DISCORD, 429, {"Retry-After": "1"}, {"retry_after": 0.529}, REFUSAL, 0.529),
    ],
)
def test_what_an_answer_means(  # noqa: PLR0917  # a table
    profile: Profile,
    status: int,
    headers: Mapping[str, str],
    body: Any,
    meaning: Meaning,
    wait: float | None,
) -> None:
    found = reading(profile, status, headers, body)
    assert (found.meaning, found.wait) == (meaning, wait)


@pytest.mark.parametrize(
    ("profile", "headers", "body", "expected"),
    [
        (
            OPENAI,
            {
                "x-ratelimit-limit-tokens": "300000",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "1m0s",
            },
            None,
            Quota("tokens", 0, 300_000, 60.0, Reset.FULL, 60.0),
        ),
        (
            OPENAI,
            {"x-ratelimit-limit-project-tokens": "9", "x-ratelimit-remaining-project-tokens": "3"},
            None,
            Quota("tokens", 3, 9, None, Reset.FULL, 60.0),
        ),
        (
            GROQ,
            {"x-ratelimit-remaining-requests": "14370", "x-ratelimit-reset-requests": "2m59.56s"},
            None,
            Quota("requests_per_day", 14_370, None, 179.56, Reset.FULL),
        ),
        (
            ANTHROPIC,
            {
                "anthropic-ratelimit-input-tokens-limit": "2000000",
                "anthropic-ratelimit-input-tokens-remaining": "1999000",
                "anthropic-ratelimit-input-tokens-reset": "2023-11-14T22:13:25Z",
            },
            None,
            Quota("input_tokens", 1_999_000, 2_000_000, 5.0, Reset.FULL, 60.0),
        ),
        (
            GITHUB,
            {
                "x-ratelimit-limit": "5000",
                "x-ratelimit-remaining": "0",
                "x-ratelimit-reset": "1700000030",
            },
            None,
            Quota("requests", 0, 5000, 30.0, Reset.WINDOW),
        ),
        (SHOPIFY, {"X-Shopify-Shop-Api-Call-Limit": "32/40"}, None, Quota("requests", 8, 40)),
        (
            SHOPIFY,
            {},
            {
                "extensions": {
                    "cost": {
                        "requestedQueryCost": 101,
                        "throttleStatus": {
                            "maximumAvailable": 2000.0,
                            "currentlyAvailable": 51,
                            "restoreRate": 100.0,
                        },
                    }
                }
            },
            Quota("points", 0, 2000, 0.5),
        ),
        (
            SHOPIFY,
            {},
            {
                "extensions": {
                    "cost": {
                        "requestedQueryCost": 1,
                        "throttleStatus": {
                            "maximumAvailable": 2000.0,
                            "currentlyAvailable": -51,
                            "restoreRate": 0.0,
                        },
                    }
                }
            },
            Quota("points", 0, 2000),
        ),
        (
            HUBSPOT,
            {"X-HubSpot-RateLimit-Max": "190", "X-HubSpot-RateLimit-Remaining": "7"},
            None,
            Quota("requests", 7, 190),
        ),
        (
            SALESFORCE,
            {"Sforce-Limit-Info": "api-usage=10018/100000; api-bursts=1/750"},
            None,
            Quota("requests", 89_982, 100_000),
        ),
        (
            DISCORD,
            {
                "X-RateLimit-Limit": "5",
                "X-RateLimit-Remaining": "0",
                "X-RateLimit-Reset-After": "0.25",
            },
            None,
            Quota("requests", 0, 5, 0.25),
        ),
        (
            MISTRAL,
            {
                "x-ratelimit-remaining-tokens-minute": "499",
                "x-ratelimit-limit-tokens-minute": "500",
            },
            None,
            Quota("tokens", 499, 500),
        ),
    ],
)
def test_the_state_of_a_quantity(
    profile: Profile, headers: Mapping[str, str], body: Any, expected: Quota
) -> None:
    found = reading(profile, 200, headers, body)
    assert found.quotas == (expected,)


@pytest.mark.parametrize(
    ("field", "value", "reset"),
    [
        ("maximumAvailable", inf, None),
        ("currentlyAvailable", inf, None),
        ("currentlyAvailable", nan, None),
        ("currentlyAvailable", 10**400, None),
        ("requestedQueryCost", inf, None),
        ("requestedQueryCost", 1e9, 3600.0),
        ("restoreRate", 1e-9, 3600.0),
    ],
)
def test_odd_numbers_in_a_body_raise_nothing(field: str, value: float, reset: float | None) -> None:
    state: dict[str, Any] = {"maximumAvailable": 9, "currentlyAvailable": 51, "restoreRate": 100}
    cost: dict[str, Any] = {"requestedQueryCost": 101, "throttleStatus": state}
    (cost if field in cost else state)[field] = value
    body = json.dumps({"extensions": {"cost": cost}})
    quota = read(SHOPIFY, ApiAnswer(200, {}, lambda: body), NOW).quota("points")
    assert (quota and quota.reset_after) == reset


def test_units_that_come_back_one_by_one_stop_nobody_until_all_are_back() -> None:
    headers = {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1m0s"}
    assert reading(OPENAI, 200, headers).stop("tokens") is None


def test_a_window_without_units_stops_until_its_end() -> None:
    headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1700000030"}
    found = reading(GITHUB, 403, headers, PRIMARY)
    assert (found.meaning, found.refused, found.stop("requests")) == (REFUSAL, ("requests",), 30.0)


def test_only_the_quantity_that_refused_stops() -> None:
    found = reading(OPENAI, 429, {"retry-after": "2"}, RATE)
    assert found.refused == ("tokens",)
    assert (found.stop("tokens"), found.stop("requests")) == (2.0, None)


@pytest.mark.parametrize(
    ("profile", "request_", "estimate"),
    [
        (
            OPENAI,
            {"messages": [{"role": "user", "content": "x" * 400}], "max_tokens": 50},
            {"tokens": 151},
        ),
        (OPENAI, {"input": "x" * 400, "max_output_tokens": 10}, {"tokens": 110}),
        (
            ANTHROPIC,
            {"system": "x" * 40, "messages": [{"content": "x" * 400}], "max_tokens": 50},
            {"input_tokens": 110, "output_tokens": 50, "tokens": 160},
        ),
        (
            GOOGLE,
            {"contents": [{"parts": [{"text": "x" * 400}]}]},
            {"input_tokens": 100, "tokens": 100},
        ),
        (
            AWS,
            {"messages": [{"content": [{"text": "x" * 40}]}], "inferenceConfig": {"maxTokens": 5}},
            {"tokens": 15},
        ),
        (
            AWS,
            {"messages": [{"content": [{"image": {"source": {"bytes": "x" * 400_000}}}]}]},
            {"tokens": 1000},
        ),
        (AWS, {"messages": "x" * 40, "inferenceConfig": None}, {"tokens": 10}),
        (OPENAI, {"input": [[1, 2], [3, 4, 5]]}, {"tokens": 5}),
        (STRIPE, {"amount": 5}, {}),
    ],
)
def test_an_estimate(
    profile: Profile, request_: Mapping[str, Any], estimate: Mapping[str, float]
) -> None:
    assert profile.estimate(request_) == estimate


@pytest.mark.parametrize(
    ("profile", "body", "usage"),
    [
        (OPENAI, {"usage": {"prompt_tokens": 9, "total_tokens": 21}}, {"tokens": 21}),
        (OPENAI, {"usage": {"input_tokens": 9, "output_tokens": 3}}, {"tokens": 12}),
        (
            OPENAI,
            {"type": "response.completed", "response": {"usage": {"total_tokens": 5}}},
            {"tokens": 5},
        ),
        (OPENAI, {"choices": [], "usage": None}, {}),
        (GROQ, {"x_groq": {"usage": {"total_tokens": 7}}}, {"tokens": 7}),
        (
            ANTHROPIC,
            {
                "usage": {
                    "input_tokens": 10,
                    "cache_creation_input_tokens": 4,
                    "cache_read_input_tokens": 100,
                    "output_tokens": 3,
                }
            },
            {"input_tokens": 14, "output_tokens": 3, "tokens": 17},
        ),
        (
            ANTHROPIC,
            {"type": "message_start", "message": {"usage": {"input_tokens": 10}}},
            {"input_tokens": 10},
        ),
        (
            ANTHROPIC,
            {"type": "message_delta", "usage": {"input_tokens": None, "output_tokens": 15}},
            {"output_tokens": 15},
        ),
        (
            ANTHROPIC,
            {
                "type": "message_start",
                "message": {"usage": {"input_tokens": 9, "output_tokens": 1}},
            },
            {"input_tokens": 9, "output_tokens": 1},
        ),
        (
            GOOGLE,
            {"usageMetadata": {"promptTokenCount": 5, "totalTokenCount": 12}},
            {"input_tokens": 5, "tokens": 12},
        ),
        (AWS, {"usage": {"totalTokens": 8}}, {"tokens": 8}),
        (AWS, {"metadata": None}, {}),
        (AWS, {"ConsumedCapacity": {"CapacityUnits": 2.5}}, {"capacity_units": 2.5}),
        (SHOPIFY, {"extensions": {"cost": {"actualQueryCost": 12}}}, {"points": 12}),
    ],
)
def test_the_usage(profile: Profile, body: Mapping[str, Any], usage: Mapping[str, float]) -> None:
    assert profile.usage(body) == usage
