"""``throttled``: limits around one view of any framework, sync or async."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from inspect import (
    Parameter,
    Signature,
    isasyncgenfunction,
    isawaitable,
    isclass,
    iscoroutinefunction,
    signature,
)
from typing import Any, NamedTuple, TypeVar

from celery_throttle.errors import ConfigurationError, shown
from celery_throttle.inbound.admitter import Admission, Door
from celery_throttle.inbound.answers import Answer
from celery_throttle.inbound.rules import CostSpec, KeyFunction, KeySpec, check_function
from celery_throttle.limiter_core import LimitHandles
from celery_throttle.limits.key_template import ArgumentReader

View = TypeVar("View", bound=Callable[..., Any])

_COLLECTING = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class _Call(NamedTuple):
    """A call of a view: what the limits know of a request."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def throttled(
    limits: LimitHandles,
    *,
    key: KeySpec | None = None,
    cost: CostSpec = 1,
    max_wait: float = 0.0,
    lease: float = 30.0,
    outage: str = "open",
    refused: Callable[[Answer], Any] | None = None,
) -> Callable[[View], View]:
    """Let a view be called as often as limits allow; it is a decorator.

    A slot of ``"10 at once"`` is held until the view returns, not until its answer has been sent.

    Args:
        limits: see :class:`~celery_throttle.inbound.ThrottledWSGI`.
        key: see there; a function takes arguments of the view by their names, such as
            ``lambda request: request.user.id``.
        cost: see there; a function takes arguments as that of the key.
        max_wait: see there.
        lease: see there.
        outage: while the server of the limits is lost, ``"open"`` calls the view, ``"closed"``
            refuses; default ``"open"``.
        refused: makes the view's answer of an :class:`~celery_throttle.inbound.Answer`, 429 or
            503; of an async view it may be async. Default: an error is raised.

    Raises:
        ThrottleError: see :class:`~celery_throttle.inbound.ThrottledWSGI`; when a view is
            decorated, also if it is none, or has no argument that ``key`` or ``cost`` names.

    Raises (when the view is called, without ``refused``):
        Throttled: the limits refused.
        StoreError: with ``outage="closed"``, the server of the limits is lost.
    """
    door = Door.read(limits, key=key, cost=cost, max_wait=max_wait, lease=lease, outage=outage)
    if refused is not None and not callable(refused):
        raise ConfigurationError(f"refused {shown(refused)} is no function; allowed: of an Answer")

    def decorate(view: View) -> View:
        _check_view(view)
        around = _around_async if _is_async(view) else _around
        limited: View = around(view, door.adapted(_adapter(view)), refused)
        return limited

    return decorate


def _around(view: Any, door: Door, refused: Callable[[Answer], Any] | None) -> Any:
    @wraps(view)
    def limited(*args: Any, **kwargs: Any) -> Any:
        admission = door.admit(_Call(args, kwargs))
        if admission.answer is not None:
            return _turn_away(admission, refused)
        try:
            return view(*args, **kwargs)
        finally:
            door.release(admission)

    return limited


def _around_async(view: Any, door: Door, refused: Callable[[Answer], Any] | None) -> Any:
    @wraps(view)
    async def limited(*args: Any, **kwargs: Any) -> Any:
        admission = await door.aadmit(_Call(args, kwargs))
        if admission.answer is not None:
            made = _turn_away(admission, refused)
            return await made if isawaitable(made) else made
        try:
            return await view(*args, **kwargs)
        finally:
            await door.arelease(admission)

    return limited


def _turn_away(admission: Admission, refused: Callable[[Answer], Any] | None) -> Any:
    assert admission.answer is not None  # noqa: S101  # it is turned away,
    assert admission.error is not None  # noqa: S101  # for a reason
    if refused is None:
        raise admission.error
    return refused(admission.answer)


def _is_async(view: Any) -> bool:
    return iscoroutinefunction(view) or iscoroutinefunction(getattr(view, "__call__", None))  # noqa: B004


def _check_view(view: Any) -> None:
    if not callable(view) or isclass(view) or isasyncgenfunction(view):
        raise ConfigurationError(
            f"{shown(view)} is no view; allowed: a function or an async function; of a class, its "
            "methods"
        )


def _adapter(view: Any) -> Callable[[KeyFunction], KeyFunction]:
    """Makes key and cost functions take a :class:`_Call` of a view.

    Each gets the arguments that it names, however the view was given them.
    """
    # Django makes a partial of a bound method, and says that it wraps the method, which has a self.
    called = partial(view.func, *view.args, **view.keywords) if isinstance(view, partial) else view
    of_view = signature(called)
    where = f"view {getattr(view, '__name__', shown(view))!r}"

    def adapt(function: KeyFunction) -> KeyFunction:
        wanted = _signature(function).parameters.values()
        if any(one.kind in _COLLECTING for one in wanted):
            return lambda call: function(*call.args, **call.kwargs)
        known = of_view.parameters
        names = [one.name for one in wanted if one.name in known or one.default is one.empty]
        reader = ArgumentReader.for_signature(of_view, names, where)
        return lambda call: function(**dict(zip(names, reader.read(*call), strict=True)))

    return adapt


def _signature(function: KeyFunction) -> Signature:
    check_function(function, "key")
    try:
        found = signature(function)
    except (TypeError, ValueError):
        found = None
    if found is None or any(
        one.kind is Parameter.POSITIONAL_ONLY for one in found.parameters.values()
    ):
        raise ConfigurationError(
            f"{shown(function)} does not say which arguments of a view it takes; allowed: a "
            "function such as lambda request: request.user.id"
        )
    return found
