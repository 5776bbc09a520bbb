"""The profile of AWS: errors are told apart by their codes, and no header carries a limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_throttle.clients.profiles.generic import OVERLOADS, REFUSALS
from celery_throttle.clients.profiles.header_values import parse_milliseconds
from celery_throttle.clients.profiles.models import TOKENS, count_input
from celery_throttle.clients.profiles.profile import Meaning, Profile, Quantity, Sign, Units, Wait

#: Codes of botocore's group "throttling".
THROTTLING_CODES = (
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottled",
    "RequestThrottledException",
    "TooManyRequestsException",
    "ProvisionedThroughputExceededException",
    "TransactionInProgressException",
    "RequestLimitExceeded",
    "BandwidthLimitExceeded",
    "LimitExceededException",
    "SlowDown",
    "PriorRequestNotComplete",
    "EC2ThrottledException",
)

#: Codes that say that the service has too little capacity now.
OVERLOAD_CODES = ("ServiceUnavailable", "ServiceUnavailableException", "ModelNotReadyException")

#: Codes of quotas on the number of resources, which no wait helps.
QUOTA_CODES = ("ServiceQuotaExceededException",)


def _estimate(request: Mapping[str, Any]) -> Units:
    """Return what Bedrock takes at the start: the input, and the most output."""
    if "messages" not in request:
        return {}
    config = request.get("inferenceConfig")  # that of another service may be anything
    most = config.get("maxTokens") if isinstance(config, Mapping) else None
    return {TOKENS: count_input(request) + (most if isinstance(most, int) else 0)}


def _usage(body: Mapping[str, Any]) -> Units:
    """Return the tokens of Bedrock's Converse, or the capacity units of DynamoDB."""
    metadata = body.get("metadata")
    usage = body.get("usage") or (metadata.get("usage") if isinstance(metadata, Mapping) else None)
    if isinstance(usage, Mapping) and "totalTokens" in usage:
        return {TOKENS: float(usage["totalTokens"])}
    consumed = body.get("ConsumedCapacity")
    tables = consumed if isinstance(consumed, list) else [consumed] if consumed else []
    units = [one["CapacityUnits"] for one in tables if "CapacityUnits" in one]
    return {"capacity_units": float(sum(units))} if units else {}


AWS = Profile(
    name="AWS",
    quantities=(Quantity(TOKENS, ""), Quantity("capacity_units", "")),
    signs=(
        Sign(Meaning.FAILURE, codes=QUOTA_CODES),
        Sign(Meaning.OVERLOAD, codes=OVERLOAD_CODES),
        Sign(Meaning.REFUSAL, codes=THROTTLING_CODES),
        REFUSALS,
        OVERLOADS,
    ),
    codes=("Error.Code", "__type", "code"),
    # Lambda's TooManyRequestsException has the second one, in seconds.
    waits=(Wait("x-amz-retry-after", parse=parse_milliseconds), Wait("retry-after")),
    estimate=_estimate,
    usage=_usage,
)
