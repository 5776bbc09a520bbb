"""Reads the figures that the metrics show."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol, TypeVar

from celery_throttle.errors import ThrottleError
from celery_throttle.observe.metrics.figures import Figures, read_figures
from celery_throttle.observe.observer import Observer
from celery_throttle.observe.values import Stranded
from celery_throttle.operations.plan import Plan

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: Limits that a page of metrics shows by default.
MAX_LIMITS = 1000


class Observed(Protocol):
    """What the metrics use of a limiter, or of the Throttle of an app.

    :meta private:
    """

    @property
    def observer(self) -> Observer:
        """What the readers of its status use."""

    @property
    def own_broker(self) -> str:
        """The broker of the app's queues, as the names of queues begin; empty without an app."""

    def run_plan(self, plan: Plan[T]) -> T:
        """Execute a plan, blocking."""


class FigureSource:
    """Reads the figures of a limiter, one reader at a time. Thread-safe.

    Args:
        throttle: a Throttle or a Limiter.
        max_limits: the most limits to read, 1 or more; the first ones by name.
    """

    def __init__(self, throttle: Observed, max_limits: int = MAX_LIMITS) -> None:
        self._throttle = throttle
        self._max_limits = max_limits
        self._lock = threading.Lock()
        self._error = ""

    def read(self) -> Figures | None:
        """Return the figures with the names of queues as they are shown.

        None if the server does not answer, or refuses. That is logged once.
        """
        with self._lock:
            try:
                plan = read_figures(self._throttle.observer, self._max_limits)
                figures = self._throttle.run_plan(plan)
            except ThrottleError as error:
                if str(error) != self._error:
                    logger.warning("The metrics have no values: %s", error)
                self._error = str(error)
                return None
            self._error = ""
        return _with_shown_queues(figures, self._throttle.own_broker)


def _with_shown_queues(figures: Figures, own_broker: str) -> Figures:
    stranded = [one.queue for one in figures.stranded if one.queue]
    shown = shown_queues({*figures.runnable, *stranded}, own_broker)
    return replace(
        figures,
        runnable={shown[queue]: tasks for queue, tasks in figures.runnable.items()},
        stranded=tuple(_with_shown_queue(one, shown) for one in figures.stranded),
    )


def _with_shown_queue(one: Stranded, shown: Mapping[str, str]) -> Stranded:
    return replace(one, queue=shown[one.queue]) if one.queue else one


def shown_queues(queues: Iterable[str], own_broker: str) -> dict[str, str]:
    """Return the shown name of each queue that is named with its broker.

    Queues of ``own_broker`` are shown as Celery names them. If it is empty, as there is no app, so
    are all queues whose names are not those of two brokers.
    """
    bare = {
        queue: queue.removeprefix(own_broker) if own_broker else queue.split("/", 2)[-1]
        for queue in queues
    }
    counts = Counter(bare.values())
    return {queue: name if counts[name] == 1 else queue for queue, name in bare.items()}
