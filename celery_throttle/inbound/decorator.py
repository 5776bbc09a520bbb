"""``ratelimit``: limits for one view of any framework, sync or async."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial, wraps
from inspect import Parameter, isasyncgenfunction, isclass, signature
from typing import Any, NamedTuple, TypeVar, cast

from celery_throttle.errors import ConfigurationError, shown
from celery_throttle.inbound.admitter import Admitter, OutageLog
from celery_throttle.inbound.answers import Answer
from celery_throttle.inbound.rules import (
    KeySpec,
    Options,
    RequestCost,
    RequestLimits,
    check_function,
)
from celery_throttle.limiter.handle import LimitHandle
from celery_throttle.limits.key_template import ArgumentReader, signature_of_calls
from celery_throttle.store.steps import Step, Steps, arun_steps, run_steps

if sys.version_info >= (3, 12):
    from inspect import iscoroutinefunction
else:  # the other one does not know views that Django marks as async, such as those of classes
    from asyncio import iscoroutinefunction

View = TypeVar("View", bound=Callable[..., Any])

_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class _Call(NamedTuple):
    """A call of a view: the request, for the key and cost functions."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def ratelimit(
    limits: RequestLimits,
    *,
    key: KeySpec | None = None,
    cost: RequestCost = 1,
    max_wait: float = 0.0,
    lease: float = 30.0,
    outage: str = "open",
    refused: Callable[[Answer], Any] | None = None,
) -> Callable[[View], View]:
    """Return a decorator for a sync or async view, which then runs only if the limits allow it.

    Without ``refused``, a call of the view raises :exc:`~celery_throttle.Throttled` if the limits
    do not allow it, and, with ``outage="closed"``, :exc:`~celery_throttle.StoreError` if the server
    of the limits cannot be reached. A slot (``"10 at once"``) is held until the view returns, not
    until its answer has been sent; of a view that returns an awaitable, until that is done.

    The arguments ``limits``, ``key``, ``cost``, ``max_wait``, ``lease`` and ``outage``, their
    defaults and their errors are those of :class:`~celery_throttle.inbound.ThrottledWSGI`, but
    functions take arguments of the view by their names: ``lambda request: request.user.id``. For an
    async view, they may be async.
    ``refused`` is a function that turns an :class:`~celery_throttle.inbound.Answer` (429 or 503)
    into the response of the view; for an async view, it may be async.

    Raises:
        ThrottleError: See :class:`~celery_throttle.inbound.ThrottledWSGI`. The decorator raises it
            also for an object that is not a view, and for a view without an argument that a
            function names.

    Example:
        ::

            @ratelimit(throttle["search"], key=lambda request: request.user.id)
            def search(request): ...
    """
    outages = OutageLog(outage)

    def decorate(view: View) -> View:
        _check_view(view)
        is_async = _is_async(view)
        if refused is not None:
            check_function(refused, "refused", may_be_async=is_async)
        adapt = partial(_adapt, view, is_async)
        options = Options(
            adapt(limits, "limits"), adapt(key, "key"), adapt(cost, "cost"), is_async=is_async
        )
        admitter = Admitter(options, outages, max_wait, lease, headers=refused is not None)
        run = partial(_run, view, admitter, refused)

        @wraps(view)
        def limited(*args: Any, **kwargs: Any) -> Any:
            return run_steps(run(_Call(args, kwargs)))

        @wraps(view)
        async def limited_async(*args: Any, **kwargs: Any) -> Any:
            return await arun_steps(run(_Call(args, kwargs)))

        result: Any = limited_async if is_async else limited
        return cast("View", result)

    return decorate


def _run(
    view: Any, admitter: Admitter, refused: Callable[[Answer], Any] | None, call: _Call
) -> Steps[Any]:
    """Call a view if the limits allow it."""
    admission = yield from admitter.admit(call)
    if admission.refusal is not None:
        if refused is None:
            raise admission.refusal.error
        respond = partial(refused, admission.refusal.answer)
        return (yield Step(respond, respond))
    try:
        run = partial(view, *call.args, **call.kwargs)
        return (yield Step(run, run, may_return_awaitable=admission.slot is not None))
    finally:
        yield from admitter.release(admission)


def _is_async(view: Any) -> bool:
    return iscoroutinefunction(view) or iscoroutinefunction(getattr(view, "__call__", None))  # noqa: B004


def _check_view(view: Any) -> None:
    if not callable(view) or isclass(view) or isasyncgenfunction(view):
        raise ConfigurationError(
            f"{shown(view)} is no view; allowed: a function or an async function; decorate the "
            "methods of a class"
        )


def _adapt(view: Any, is_async: bool, option: Any, name: str) -> Any:  # noqa: FBT001  # of this module
    """Return an option whose functions take a :class:`_Call` of a view.

    Each gets the arguments that it names, whether the view got them by position or by name. In a
    mapping, each function is adapted. Whatever else an option may be stays as it is.
    """
    if isinstance(option, Mapping):
        return {key: _adapt(view, is_async, each, name) for key, each in option.items()}
    if not callable(option) or isinstance(option, LimitHandle):
        return option
    check_function(option, name, may_be_async=is_async)
    parameters = _parameters(option)
    if any(one.kind in _VARIADIC for one in parameters):
        return wraps(option)(lambda call: option(*call.args, **call.kwargs))
    # Django passes a partial of a bound method that claims to wrap the method, which has a self.
    called = partial(view.func, *view.args, **view.keywords) if isinstance(view, partial) else view
    of_view = signature_of_calls(called)
    known = of_view.parameters
    names = [one.name for one in parameters if one.name in known or one.default is one.empty]
    where = f"view {getattr(view, '__name__', shown(view))!r}"
    reader = ArgumentReader.for_signature(of_view, names, where)
    return wraps(option)(lambda call: option(**dict(zip(names, reader.read(*call), strict=True))))


def _parameters(function: Callable[..., Any]) -> list[Parameter]:
    """Return the parameters of a function, which all have names to pass them by."""
    try:
        found = list(signature(function).parameters.values())
    except (TypeError, ValueError):
        found = None
    if found is None or any(one.kind is Parameter.POSITIONAL_ONLY for one in found):
        raise ConfigurationError(
            f"{shown(function)} does not say which arguments of a view it takes; allowed: a "
            "function such as lambda request: request.user.id"
        )
    return found
