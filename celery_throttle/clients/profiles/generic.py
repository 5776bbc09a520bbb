"""The profile of any HTTP API: the headers that many vendors share, and those of the IETF.

The drafts 06 to 11 of draft-ietf-httpapi-ratelimit-headers differ in their syntax: three headers,
one dictionary, a list of named quotas whose policies name the unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from http_sf import Token

from celery_throttle.clients.profiles.fields import Fields
from celery_throttle.clients.profiles.header_values import (
    Parameters,
    parse_dictionary,
    parse_list,
    parse_milliseconds,
    parse_reset,
    parse_used_of,
)
from celery_throttle.clients.profiles.profile import (
    REQUESTS,
    Meaning,
    Profile,
    Quantity,
    Quota,
    Reset,
    Sign,
    Wait,
)

#: Where most APIs say when to come again; the first two are of OpenAI and Azure.
RETRY_AFTER = (
    Wait("retry-after-ms", parse=parse_milliseconds),
    Wait("x-ms-retry-after-ms", parse=parse_milliseconds),
    Wait("retry-after"),
)

#: 529 is Anthropic's, and of some others.
OVERLOADED = 529

#: A vendor that says 503 asks for patience, whatever its limits are.
OVERLOADS = Sign(Meaning.OVERLOAD, statuses=(HTTPStatus.SERVICE_UNAVAILABLE, OVERLOADED))
REFUSALS = Sign(Meaning.REFUSAL, statuses=(HTTPStatus.TOO_MANY_REQUESTS,))

#: Used and limit, as Shopify has them, and those who copy it.
SHOPIFY_HEADER = "x-shopify-shop-api-call-limit"

#: The parameters of the members of ``RateLimit``, by the names of draft 07.
_DRAFT_07 = {"remaining": "r", "reset": "t", "limit": "q"}


def read_ietf(fields: Fields) -> Iterator[Quota]:
    """Yield the quotas of the header ``RateLimit``, from draft 07 on."""
    members = fields.value("ratelimit", _parse_members) or ()
    policies = dict(fields.value("ratelimit-policy", _parse_members) or ()) if members else {}
    for name, about in members:
        policy = policies.get(name, {})
        remaining, reset = about.get("r"), about.get("t")
        if not _is_whole(remaining):
            fields.warn("ratelimit", name, "has no whole number r=")
            continue
        seconds = None
        if reset is not None:
            seconds = fields.checked_delay("ratelimit", str(reset), parse_reset)
        limit, period = policy.get("q", about.get("q")), policy.get("w", about.get("w"))
        quantity = str(policy.get("qu", REQUESTS))
        yield Quota(
            quantity,
            remaining,
            limit if _is_whole(limit) else None,
            seconds,
            period=period if _is_whole(period) and period else None,
        )


def _parse_members(text: str) -> list[tuple[str, Parameters]]:
    """Parse a list of items with parameters; of draft 07, a dictionary, as one such item."""
    try:
        members = parse_list(text)
    except ValueError:
        found = parse_dictionary(text)
        return [("", {_DRAFT_07.get(name, name): value for name, value in found.items()})]
    if not all(isinstance(name, (str, Token, int)) for name, _ in members):
        raise ValueError("is no list of items")
    return [(str(name), about) for name, about in members]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _quotas(fields: Fields) -> Iterator[Quota]:
    """Yield the quotas of the IETF, and those of Shopify's header, which others copy."""
    if "ratelimit" in fields.answer.headers:
        yield from read_ietf(fields)
    yield from read_used_of(fields, SHOPIFY_HEADER)


def read_used_of(
    fields: Fields, header: str, parse: Callable[[str], tuple[int, int]] = parse_used_of
) -> Iterator[Quota]:
    """Yield the quota of requests of a header with used/limit."""
    found = fields.value(header, parse)
    if found is not None:
        used, limit = found
        yield Quota(REQUESTS, max(limit - used, 0), limit)


def quantity(
    name: str, headers: str, means: Reset = Reset.WINDOW, period: float | None = None
) -> Quantity:
    """Return a quantity whose headers differ in one word, which ``{}`` stands for."""
    remaining, limit, reset = map(headers.format, ("remaining", "limit", "reset"))
    return Quantity(name, remaining, limit, reset, means, period)


#: The headers of APIs without a profile of their own.
GENERIC = Profile(
    name="an API without a profile",
    quantities=(
        quantity(REQUESTS, "ratelimit-{}"),
        quantity(REQUESTS, "x-ratelimit-{}"),
        quantity(REQUESTS, "x-rate-limit-{}"),
        quantity(REQUESTS, "x-ratelimit-{}-requests", Reset.FULL),
        quantity("tokens", "x-ratelimit-{}-tokens", Reset.FULL),
    ),
    signs=(
        REFUSALS,
        Sign(Meaning.REFUSAL, statuses=(HTTPStatus.FORBIDDEN,), header="retry-after"),
        # Without a time, it may be broken for any reason.
        replace(OVERLOADS, header="retry-after"),
    ),
    waits=RETRY_AFTER,
    quotas=_quotas,
    quota_headers=("ratelimit", SHOPIFY_HEADER),
)
