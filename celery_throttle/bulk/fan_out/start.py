"""``throttle.fan_out(...)``: checks its arguments and publishes the tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from operator import length_hint
from uuid import uuid4

from celery.canvas import Signature
from celery.utils.log import get_logger

from celery_throttle.bulk.fan_out.handle import FanOut
from celery_throttle.bulk.fan_out.publisher import Publisher
from celery_throttle.bulk.fan_out.unlimited import UnlimitedFanOut
from celery_throttle.errors import ConfigurationError, FanOutError, require_extra, shown
from celery_throttle.limits.duration import check_duration
from celery_throttle.tasks.app_limits import AppLimits

logger = get_logger(__name__)

_MAX_NAME_CHARACTERS = 200

#: The version of Celery's messages whose headers name the task.
_PROTOCOL = 2

#: The least number of seconds that the record of a fan-out is kept.
_MIN_KEEP_SECONDS = 60.0


def fan_out(
    throttle: AppLimits,
    signatures: Iterable[Signature],
    name: str | None,
    *,
    max_waiting: int | None,
    keep: float,
    bar: bool,
) -> FanOut:
    """See :meth:`celery_throttle.app.Throttle.fan_out`."""
    if isinstance(signatures, Mapping):
        raise FanOutError(f"{shown(signatures)} is one signature; allowed: an iterable of them")
    name = _check_arguments(name, max_waiting, keep)
    if not throttle.settings.enabled:
        return UnlimitedFanOut.send(throttle, name, signatures)
    _check_app(throttle)
    handle = FanOut(throttle, name)
    with ExitStack() as stack:
        report = None
        if bar:
            with require_extra("rich", "a progress bar", "bar"):
                from celery_throttle.bulk.fan_out.bar import send_bar  # noqa: PLC0415  # an extra
            report = stack.enter_context(send_bar(handle.name, length_hint(signatures)))
        publisher = Publisher(
            throttle, handle.name, max_waiting=max_waiting, keep=keep, report=report
        )
        publisher.publish(signatures)
    logger.info(
        "Fan-out %s: %d tasks joined their lines, %d had been sent before%s",
        *(handle.name, publisher.sent, publisher.processed - publisher.sent),
        "; then it was cancelled" if publisher.cancelled else "",
    )
    return handle


def _check_app(throttle: AppLimits) -> None:
    if throttle.app.conf.task_always_eager:
        raise ConfigurationError(
            "task_always_eager is set: tasks run at once in this process, and cannot wait in a line"
        )
    if throttle.settings.waiting == "broker":
        raise ConfigurationError(
            "throttle_waiting is 'broker': messages stay out of Redis, so there are no lines"
        )
    if throttle.app.conf.task_protocol != _PROTOCOL:
        raise ConfigurationError(
            f"task_protocol is {throttle.app.conf.task_protocol}; fan-outs need {_PROTOCOL}"
        )


def _check_arguments(name: str | None, max_waiting: int | None, keep: float) -> str:
    """Check arguments of a fan-out; return its name, which is random by default."""
    if name is None:
        name = uuid4().hex
    if not isinstance(name, str) or not 1 <= len(name) <= _MAX_NAME_CHARACTERS:
        raise FanOutError(
            f"{shown(name)} cannot name a fan-out; allowed: text of 1 to {_MAX_NAME_CHARACTERS} "
            "characters"
        )
    whole = isinstance(max_waiting, int) and not isinstance(max_waiting, bool)
    if max_waiting is not None and (not whole or max_waiting < 1):
        raise FanOutError(
            f"max_waiting is {shown(max_waiting)}; allowed: a whole number, 1 or more"
        )
    if check_duration(keep, "keep") < _MIN_KEEP_SECONDS:
        raise FanOutError(f"keep is {keep}; allowed: seconds, {_MIN_KEEP_SECONDS:g} or more")
    return name
