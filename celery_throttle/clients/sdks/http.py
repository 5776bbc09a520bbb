"""SDKs that send by a client of httpx or httpx2: openai, anthropic, google-genai.

The limits are acquired at the transport, so each attempt of an SDK counts. The repeats of openai
and anthropic after a refusal are turned off: they would wait in the process.
"""

from __future__ import annotations

from functools import cache, wraps
from importlib import import_module
from inspect import iscoroutinefunction
from typing import Any

from celery_throttle.clients.calls.guard import GuardedLimits
from celery_throttle.clients.calls.transport import Interrupt
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
from celery_throttle.clients.profiles.profile import Profile

#: The profiles of APIs that are called by openai's clients, by domain. Azure has several clouds.
_PROFILES = {
    "azure.com": AZURE_OPENAI,
    "azure.us": AZURE_OPENAI,
    "azure.cn": AZURE_OPENAI,
    "groq.com": GROQ,
    "mistral.ai": MISTRAL,
    "together.ai": TOGETHER,
    "together.xyz": TOGETHER,
    "deepseek.com": DEEPSEEK,
}


def throttle_openai(client: Any, limits: GuardedLimits, **options: Any) -> Any:
    """Return a client like one of openai that acquires limits; see ``throttled()``."""
    return _throttle_stainless(client, limits, openai_profile(client), options)


def throttle_anthropic(client: Any, limits: GuardedLimits, **options: Any) -> Any:
    """Return a client like one of anthropic that acquires limits; see ``throttled()``."""
    return _throttle_stainless(client, limits, ANTHROPIC, options)


def openai_profile(client: Any) -> Profile:
    """Return the profile of the API that a client of openai calls."""
    if any("Azure" in kind.__name__ for kind in type(client).__mro__):  # at any host
        return AZURE_OPENAI
    domain = ".".join(client.base_url.host.split(".")[-2:])
    return _PROFILES.get(domain, OPENAI)


def _throttle_stainless(
    client: Any, limits: GuardedLimits, profile: Profile, options: dict[str, Any]
) -> Any:
    """Both SDKs are made by the same generator, Stainless."""
    inner = client._client  # noqa: SLF001  # the SDKs have no public name for it
    options["profile"] = options["profile"] or profile
    guarded = _guarded_http_client(inner, client, limits, is_in_sdk=True, **options)
    copied = client.with_options(http_client=guarded)
    kind: Any = type(copied)
    copied.__class__ = _unwrapping_class(kind)
    return copied


def throttle_google(client: Any, limits: GuardedLimits, **options: Any) -> Any:
    """Return a client like one of google-genai that acquires limits; see ``throttled()``.

    The asyncio part of the copy sends by httpx, not by aiohttp.
    """
    api = client._api_client  # noqa: SLF001  # its settings have no public names
    options["profile"] = options["profile"] or GOOGLE

    def guarded(inner: Any) -> Any:
        return _guarded_http_client(inner, client, limits, **options)

    http_options = api._http_options.model_copy(  # noqa: SLF001  # likewise
        update={
            "httpx_client": guarded(api._httpx_client),  # noqa: SLF001
            "httpx_async_client": guarded(api._async_httpx_client),  # noqa: SLF001
        }
    )
    return type(client)(
        vertexai=bool(api.vertexai),
        api_key=api.api_key,
        credentials=api._credentials,  # noqa: SLF001
        project=api.project,
        location=api.location,
        http_options=http_options,
    )


class _ClientTransport:
    """Sends by a client of httpx or httpx2, with all its settings."""

    def __init__(self, client: Any, owner: Any) -> None:
        self._client = client
        # That of google-genai closes its HTTP client when it is collected.
        self._owner = owner

    def handle_request(self, request: Any) -> Any:
        return self._client.send(request, stream=True, follow_redirects=False)

    def close(self) -> None:
        self._client.close()


class _AsyncClientTransport(_ClientTransport):
    async def handle_async_request(self, request: Any) -> Any:
        return await self._client.send(request, stream=True, follow_redirects=False)

    async def aclose(self) -> None:
        await self._client.aclose()


def _guarded_http_client(
    inner: Any,
    owner: Any,
    limits: GuardedLimits,
    is_in_sdk: bool = False,  # noqa: FBT001, FBT002  # of this module
    **options: Any,
) -> Any:
    """Return an HTTP client like that of an SDK's client, whose requests acquire limits."""
    library = import_module(_library_of(inner))
    transports = import_module(f"celery_throttle.clients.{library.__name__}")
    is_async = isinstance(inner, library.AsyncClient)
    kind = transports.AsyncThrottledTransport if is_async else transports.ThrottledTransport
    sender = (_AsyncClientTransport if is_async else _ClientTransport)(inner, owner)
    transport = kind(limits, sender, **options)
    transport.is_in_sdk = is_in_sdk
    client = library.AsyncClient if is_async else library.Client
    # Its timeout comes with each request. The SDK makes requests by this client, so they have what
    # the other one would add.
    return client(
        transport=transport,
        follow_redirects=inner.follow_redirects,
        headers=inner.headers,
        params=inner.params,
        cookies=inner.cookies,
    )


def _library_of(client: Any) -> str:
    """Return "httpx" or "httpx2", by the class that the client extends."""
    names = [kind.__module__.partition(".")[0] for kind in type(client).__mro__]
    return "httpx2" if "httpx2" in names else "httpx"


@cache
def _unwrapping_class(kind: type) -> type:
    """Return a subclass of an SDK's client that raises what an interrupt carries."""
    inner = kind.request  # type: ignore[attr-defined]  # of the SDK
    if iscoroutinefunction(inner):

        @wraps(inner)
        async def arequest(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return await inner(self, *args, **kwargs)
            except Interrupt as interrupt:
                raise interrupt.error from None

        return type(kind.__name__, (kind,), {"request": arequest})

    @wraps(inner)
    def request(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return inner(self, *args, **kwargs)
        except Interrupt as interrupt:
            raise interrupt.error from None

    return type(kind.__name__, (kind,), {"request": request})
