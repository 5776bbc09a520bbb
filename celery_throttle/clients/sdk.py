"""Clients of SDKs: :func:`throttled` returns one whose requests acquire limits.

The limits are acquired where the SDK sends, so each attempt of an SDK counts. The SDK's own repeats
of refused requests are turned off: they would wait in the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeVar

from celery_throttle.clients.calls.guard import CallCost, GuardedLimits, Usage
from celery_throttle.clients.profiles.profile import Profile
from celery_throttle.errors import LimitValueError, shown

C = TypeVar("C")

#: How often a refused request is sent again, as the SDKs do by themselves.
DEFAULT_REPEATS = 2

#: Which function throttles a client, by the package of its class or of a base. Its module is
#: imported with the first client, as it may import the SDK.
_SDKS: Mapping[str, tuple[str, str]] = {
    "anthropic": ("celery_throttle.clients.sdks.http", "throttle_anthropic"),
    "boto3": ("celery_throttle.clients.sdks.botocore", "throttle_resource"),
    "botocore": ("celery_throttle.clients.sdks.botocore", "throttle_client"),
    "google.genai": ("celery_throttle.clients.sdks.http", "throttle_google"),
    "openai": ("celery_throttle.clients.sdks.http", "throttle_openai"),
    "urllib3": ("celery_throttle.clients.urllib3", "throttle_manager"),
}


def throttled(
    client: C,
    limits: GuardedLimits,
    *,
    profile: Profile | None = None,
    cost: CallCost | None = None,
    usage: Usage | None = None,
    max_wait: float = 0.0,
    retry_refused: int = DEFAULT_REPEATS,
) -> C:
    """Return a client of an SDK that acquires limits before each request.

    It has the settings of the client that is given, which stays as it is. Results, exceptions,
    streams and asyncio are as before, but for :class:`~celery_throttle.Throttled`. In a task that a
    worker runs, that error makes the task join its line.

    Except for a ``PoolManager``, both clients share their connections. After you have closed a
    client of openai or anthropic, neither of the two can send, as with their ``with_options()``.

    Args:
        client: A client of openai, anthropic or google-genai, for blocking code or for asyncio. A
            client of boto3 or botocore, for any service of AWS, or a resource of boto3. A
            ``urllib3.PoolManager``.
        limits: A handle such as ``throttle["openai"]``, or a list of handles of one limiter; each
            counts requests. Or a dict of such limits by the quantity that they count:
            ``{"requests": throttle["rpm"], "tokens": throttle["tpm"]}``. Or a function of the
            request that returns one of these, or None for no limit: it takes an ``httpx.Request``,
            an ``httpx2.Request``, a ``botocore.awsrequest.AWSPreparedRequest``, or a
            :class:`~celery_throttle.clients.urllib3.Urllib3Request`.
        profile: What the vendor documents. Default: by the SDK and the address of the API.
        cost: Units for each limit, or a dict of units by quantity, or a function of the request
            that returns either. Default: one request, and the estimate of the profile. For an
            asyncio client, this function, and that of ``limits``, may be async.
        usage: A function that returns the actual cost, in the forms of ``cost``, from the JSON of
            an answer, or of an event of a stream. Default: the profile reads it.
        max_wait: The most seconds that a request waits for its limits; default 0.
        retry_refused: How many times to send a request again that the API refuses, each time after
            the limits allow it again; default 2.

    Raises:
        LimitError: An argument is invalid.
        LimitValueError: The client is of an SDK that this function does not know.

    Example:
        ::

            client = throttled(
                openai.OpenAI(), {"requests": throttle["rpm"], "tokens": throttle["tpm"]}
            )
            s3 = throttled(boto3.client("s3"), throttle["s3"])
    """
    module, name = _find_sdk(client)
    throttle = getattr(import_module(module), name)
    throttled_client: C = throttle(
        client,
        limits,
        profile=profile,
        cost=cost,
        usage=usage,
        max_wait=max_wait,
        retry_refused=retry_refused,
    )
    return throttled_client


def _find_sdk(client: Any) -> tuple[str, str]:
    for kind in type(client).__mro__:  # a user's subclass is in a module of its own
        for package, found in _SDKS.items():
            if f"{kind.__module__}.".startswith(f"{package}."):
                return found
    raise LimitValueError(
        f"{shown(client)} is no client that throttled() knows; allowed: those of "
        f"{', '.join(_SDKS)}; celery_throttle.clients has modules for HTTP clients and gRPC, and "
        "wrap() is for the functions of any other SDK"
    )
