"""``throttle.fan_out(...)``: checks what it is given, and publishes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from operator import length_hint
from typing import TYPE_CHECKING
from uuid import uuid4

from celery.utils.log import get_logger

from celery_throttle.errors import ConfigurationError, FanOutError, shown
from celery_throttle.extras import needed
from celery_throttle.fanout.handle import FanOut
from celery_throttle.fanout.publisher import Publisher
from celery_throttle.limits.duration import check_duration

if TYPE_CHECKING:
    from celery.canvas import Signature

    from celery_throttle.app import Throttle

logger = get_logger(__name__)

_LONGEST_NAME = 200

#: Of Celery's messages: the one whose headers tell what a task is.
_PROTOCOL = 2

#: Seconds for which what is known of a fan-out is kept at least.
_LEAST_KEEP = 60.0


def fan_out(
    throttle: Throttle,
    signatures: Iterable[Signature],
    name: str | None,
    *,
    max_waiting: int | None,
    keep: float,
    bar: bool,
) -> FanOut:
    """See :meth:`celery_throttle.app.Throttle.fan_out`."""
    if isinstance(signatures, Mapping):
        raise FanOutError(f"{shown(signatures)} is one signature; allowed: many, such as a list")
    handle = FanOut(throttle, _check(throttle, name, max_waiting, keep))
    with ExitStack() as stack:
        show = None
        if bar:
            with needed("rich", "a progress bar", "bar"):
                from celery_throttle.fanout.bar import sending  # noqa: PLC0415  # an extra
            show = stack.enter_context(sending(handle.name, length_hint(signatures)))
        publisher = Publisher(throttle, handle.name, max_waiting=max_waiting, keep=keep, show=show)
        publisher.publish(signatures)
    logger.info(
        "Fan-out %s: %d tasks were put into lines, %d had been sent before%s",
        *(handle.name, publisher.sent, publisher.dealt - publisher.sent),
        "; then it was cancelled" if publisher.cancelled else "",
    )
    return handle


def _check(throttle: Throttle, name: str | None, max_waiting: int | None, keep: float) -> str:
    if throttle.app.conf.task_always_eager:
        raise ConfigurationError(
            "task_always_eager is set: tasks would run here and now, and none can wait in a line"
        )
    if throttle.settings.waiting == "broker":
        raise ConfigurationError(
            "throttle_waiting is 'broker': no messages are to be in Redis, so there are no lines"
        )
    if throttle.app.conf.task_protocol != _PROTOCOL:
        raise ConfigurationError(
            f"task_protocol is {throttle.app.conf.task_protocol}; fan-outs need {_PROTOCOL}"
        )
    if name is None:
        name = uuid4().hex
    if not isinstance(name, str) or not 1 <= len(name) <= _LONGEST_NAME:
        raise FanOutError(
            f"{shown(name)} cannot name a fan-out; allowed: text of 1 to {_LONGEST_NAME} characters"
        )
    whole = isinstance(max_waiting, int) and not isinstance(max_waiting, bool)
    if max_waiting is not None and (not whole or max_waiting < 1):
        raise FanOutError(
            f"max_waiting is {shown(max_waiting)}; allowed: a whole number, 1 or more"
        )
    if check_duration(keep, "keep") < _LEAST_KEEP:
        raise FanOutError(f"keep is {keep}; allowed: seconds, {_LEAST_KEEP:g} or more")
    return name
