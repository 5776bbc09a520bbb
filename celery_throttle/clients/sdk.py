"""Clients of SDKs: :func:`throttled` returns one whose requests acquire limits.

The limits are acquired at the transport, so each attempt of an SDK counts. The SDK's own repeats of
refused requests are turned off: they would wait in the process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, wraps
from importlib import import_module
from typing import Any, TypeVar

from celery_throttle.clients.guard import CallCost, GuardedLimits, Usage
from celery_throttle.clients.profile import Profile
from celery_throttle.clients.profiles.models import (
    ANTHROPIC,
    AZURE_OPENAI,
    DEEPSEEK,
    GROQ,
    MISTRAL,
    OPENAI,
    TOGETHER,
)
from celery_throttle.clients.transport import Interrupt
from celery_throttle.errors import LimitValueError, shown

C = TypeVar("C")

#: How often a refused request is sent again, as the SDKs do by themselves.
DEFAULT_REPEATS = 2

#: The vendors that copy OpenAI's API, by a part of the address.
_COMPATIBLE = {
    "groq.com": GROQ,
    "mistral.ai": MISTRAL,
    "together.": TOGETHER,
    "deepseek.com": DEEPSEEK,
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

    Args:
        client: A client of openai or anthropic, for blocking code or for asyncio.
        limits: A handle such as ``throttle["openai"]``, or a list of handles of one limiter; each
            counts requests. Or a dict of such limits by the quantity that they count:
            ``{"requests": throttle["rpm"], "tokens": throttle["tpm"]}``. Or a function of the
            request that returns one of these.
        profile: What the vendor documents. Default: by the SDK and the address of the API.
        cost: Units for each limit, or a dict of units by quantity, or a function of the request
            that returns either. Default: one request, and the estimate of the profile.
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
    """
    sdk = type(client).__module__.partition(".")[0]
    if sdk not in _PROFILES:
        raise LimitValueError(
            f"{shown(client)} is no client that throttled() knows; allowed: those of "
            f"{', '.join(_PROFILES)}; wrap() is for the functions of any other SDK"
        )
    guarded = _guarded_http_client(
        client,
        limits,
        profile=profile or _PROFILES[sdk](client),
        cost=cost,
        usage=usage,
        max_wait=max_wait,
        retry_refused=retry_refused,
    )
    copied: Any = client.with_options(http_client=guarded)  # type: ignore[attr-defined]  # checked above
    kind: Any = type(copied)
    copied.__class__ = _unwrapping_class(kind)
    return copied  # type: ignore[no-any-return]  # of the class of the client


def _openai_profile(client: Any) -> Profile:
    host = str(client.base_url)
    if "Azure" in type(client).__name__:
        return AZURE_OPENAI
    return next((found for part, found in _COMPATIBLE.items() if part in host), OPENAI)


_PROFILES: Mapping[str, Callable[[Any], Profile]] = {
    "openai": _openai_profile,
    "anthropic": lambda _: ANTHROPIC,
}


class _ClientTransport:
    """Sends by a client of httpx or httpx2, with all its settings."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def handle_request(self, request: Any) -> Any:
        return self._client.send(request, stream=True, follow_redirects=False)

    def close(self) -> None:
        self._client.close()


class _AsyncClientTransport(_ClientTransport):
    async def handle_async_request(self, request: Any) -> Any:
        return await self._client.send(request, stream=True, follow_redirects=False)

    async def aclose(self) -> None:
        await self._client.aclose()


def _guarded_http_client(sdk_client: Any, limits: GuardedLimits, **options: Any) -> Any:
    """Return an HTTP client like that of an SDK's client, whose requests acquire limits."""
    inner = sdk_client._client  # noqa: SLF001  # the SDKs have no public name for it
    library = import_module(_library_of(inner))
    transports = import_module(f"celery_throttle.clients.{library.__name__}")
    is_async = isinstance(inner, library.AsyncClient)
    kind = transports.AsyncThrottledTransport if is_async else transports.ThrottledTransport
    sender = _AsyncClientTransport(inner) if is_async else _ClientTransport(inner)
    transport = kind(limits, sender, **options)
    transport.is_in_sdk = True
    client = library.AsyncClient if is_async else library.Client
    # Its timeout comes with each request.
    return client(transport=transport, follow_redirects=inner.follow_redirects)


def _library_of(client: Any) -> str:
    """Return "httpx" or "httpx2", by the class that the client extends."""
    names = [kind.__module__.partition(".")[0] for kind in type(client).__mro__]
    return "httpx2" if "httpx2" in names else "httpx"


@cache
def _unwrapping_class(kind: type) -> type:
    """Return a subclass of an SDK's client that raises what an interrupt carries."""
    inner = kind.request  # type: ignore[attr-defined]  # of the SDK
    if "Async" in kind.__name__:

        @wraps(inner)
        async def arequest(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return await inner(self, *args, **kwargs)
            except Interrupt as interrupt:
                raise interrupt.refusal from None

        return type(kind.__name__, (kind,), {"request": arequest})

    @wraps(inner)
    def request(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return inner(self, *args, **kwargs)
        except Interrupt as interrupt:
            raise interrupt.refusal from None

    return type(kind.__name__, (kind,), {"request": request})
