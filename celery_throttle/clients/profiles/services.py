"""Profiles of services for businesses and developers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from celery_throttle.clients.profiles.fields import Fields
from celery_throttle.clients.profiles.generic import (
    OVERLOADS,
    REFUSALS,
    RETRY_AFTER,
    SHOPIFY_HEADER,
    read_used_of,
)
from celery_throttle.clients.profiles.header_values import parse_retry_after, parse_used_of
from celery_throttle.clients.profiles.profile import (
    REQUESTS,
    Meaning,
    Profile,
    Quantity,
    Quota,
    Sign,
    Units,
    Wait,
)

#: The quantity of an API that counts requests at once; a limit such as ``10 at once`` is for it.
CONCURRENCY = "concurrent_requests"

POINTS = "points"

STRIPE = Profile(
    name="Stripe",
    signs=(
        Sign(Meaning.FAILURE, statuses=(429,), codes=("lock_timeout",)),
        Sign(Meaning.REFUSAL, statuses=(400, 429), codes=("rate_limit",)),
        REFUSALS,
        OVERLOADS,
    ),
    codes=("error.code",),
    waits=RETRY_AFTER,
)

GITHUB = Profile(
    name="GitHub",
    quantities=(
        Quantity(REQUESTS, "x-ratelimit-remaining", "x-ratelimit-limit", "x-ratelimit-reset"),
    ),
    signs=(
        Sign(Meaning.REFUSAL, statuses=(403, 429), text="secondary rate limit", wait=60.0),
        Sign(Meaning.REFUSAL, statuses=(403, 429), text="rate limit exceeded"),
        Sign(Meaning.REFUSAL, statuses=(403, 429), header="retry-after"),
        Sign(Meaning.REFUSAL, statuses=(200,), codes=("RATE_LIMITED",)),
        REFUSALS,
    ),
    codes=("errors.*.type",),
    waits=RETRY_AFTER,
)


def _shopify_quotas(fields: Fields) -> Iterator[Quota]:
    """Yield the requests of REST, or the points of GraphQL."""
    yield from read_used_of(fields, SHOPIFY_HEADER)
    cost = _shopify_cost(fields.answer.body)
    try:
        state = cost["throttleStatus"]
        left, rate = float(state["currentlyAvailable"]), float(state["restoreRate"])
        lacks = float(cost["requestedQueryCost"]) - left
        remaining, limit = max(0, int(left)), int(state["maximumAvailable"])
    except (KeyError, OverflowError, TypeError, ValueError):  # JSON has numbers of any size
        return
    reset = None
    if lacks > 0 and rate > 0:
        reset = fields.checked_delay("throttleStatus", f"{lacks / rate:.3f}", parse_retry_after)
    yield Quota(POINTS, 0 if reset else remaining, limit, reset)


def _shopify_cost(body: Any) -> Mapping[str, Any]:
    extensions = body.get("extensions") if isinstance(body, Mapping) else None
    cost = extensions.get("cost") if isinstance(extensions, Mapping) else None
    return cost if isinstance(cost, Mapping) else {}


def _shopify_usage(body: Mapping[str, Any]) -> Units:
    actual = _shopify_cost(body).get("actualQueryCost")
    return {} if actual is None else {POINTS: float(actual)}


SHOPIFY = Profile(
    name="Shopify",
    quantities=(Quantity(POINTS, ""),),
    signs=(
        Sign(Meaning.REFUSAL, statuses=(200,), codes=("THROTTLED",), quantities=(POINTS,)),
        Sign(Meaning.FAILURE, statuses=(200,), codes=("MAX_COST_EXCEEDED",)),
        REFUSALS,
        OVERLOADS,
    ),
    codes=("errors.*.extensions.code",),
    waits=RETRY_AFTER,
    quotas=_shopify_quotas,
    quota_headers=(SHOPIFY_HEADER,),
    usage=_shopify_usage,
)

SLACK = Profile(
    name="Slack",
    signs=(Sign(Meaning.REFUSAL, codes=("ratelimited", "rate_limited")), REFUSALS, OVERLOADS),
    codes=("error",),
    waits=RETRY_AFTER,
)

TWILIO = Profile(
    name="Twilio",
    quantities=(Quantity(CONCURRENCY, ""),),
    signs=(REFUSALS, OVERLOADS),
    waits=RETRY_AFTER,
)

HUBSPOT = Profile(
    name="HubSpot",
    quantities=(
        Quantity(REQUESTS, "x-hubspot-ratelimit-remaining", "x-hubspot-ratelimit-max"),
        Quantity(
            "requests_per_day", "x-hubspot-ratelimit-daily-remaining", "x-hubspot-ratelimit-daily"
        ),
    ),
    signs=(
        Sign(Meaning.REFUSAL, statuses=(429,), codes=("DAILY",), quantities=("requests_per_day",)),
        REFUSALS,
        Sign(Meaning.OVERLOAD, statuses=(502, 504)),
        OVERLOADS,
    ),
    codes=("policyName",),
    waits=RETRY_AFTER,
)

_SALESFORCE_USAGE = re.compile(r"\bapi-usage=([0-9]{1,15}/[0-9]{1,15})")


def _parse_salesforce(text: str) -> tuple[int, int]:
    match = _SALESFORCE_USAGE.search(text)
    if match is None:
        raise ValueError("has no api-usage=")
    return parse_used_of(match[1])


SALESFORCE = Profile(
    name="Salesforce",
    signs=(
        Sign(Meaning.REFUSAL, statuses=(403,), codes=("REQUEST_LIMIT_EXCEEDED",)),
        REFUSALS,
        OVERLOADS,
    ),
    codes=("*.errorCode",),
    waits=RETRY_AFTER,
    quotas=lambda fields: read_used_of(fields, "sforce-limit-info", _parse_salesforce),
    quota_headers=("sforce-limit-info",),
)

DISCORD = Profile(
    name="Discord",
    quantities=(
        # The second form has decimals of a second as well, and needs no clock.
        Quantity(REQUESTS, "x-ratelimit-remaining", "x-ratelimit-limit", "x-ratelimit-reset-after"),
    ),
    signs=(REFUSALS, Sign(Meaning.OVERLOAD, statuses=(502, 503, 504))),
    waits=(Wait(path="retry_after"), *RETRY_AFTER),
)
