"""What all pages use: the limiter, the names of queues, recent periods, and tables by page."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from math import ceil
from typing import Any, TypeVar
from urllib.parse import urlencode

from flask import g, request, url_for

from celery_throttle.limiter.limiter import Limiter
from celery_throttle.limits.key import LimitRef, check_name, parse_key
from celery_throttle.observe.merged import Reading
from celery_throttle.observe.observer import Observer
from celery_throttle.observe.status.fleet import read_fleet
from celery_throttle.observe.status.records import RECORD_SECONDS, read_recent
from celery_throttle.observe.status.stored import read_changes
from celery_throttle.observe.values import Change, Period
from celery_throttle.operations.plan import Plan

T = TypeVar("T")

#: The newest changes among which those of an action, or of a limit, are searched.
NEWEST_CHANGES = 200

#: The limits whose recent periods are kept.
_CACHE_SIZE = 1000

_MAX_PAGE = 1_000_000_000


class Site:
    """What all pages use. Thread-safe.

    ``show_arguments``: whether the arguments of waiting tasks are shown.
    """

    def __init__(self, limiter: Limiter, *, show_arguments: bool = False) -> None:
        self.limiter = limiter
        self.throttle: Any = limiter  # that of an app can take tasks out of lines
        self.has_app = hasattr(limiter, "fan_out_named")
        self.show_arguments = show_arguments
        self._recent = lru_cache(_CACHE_SIZE)(self._read_recent)

    def read(self, reader: Callable[[Observer], Plan[T]], ref: LimitRef | None = None) -> T:
        """Run a plan in all shards, or in those that have a limit. The page names lost shards."""
        return self.merged(self.limiter.read(reader, ref))

    def merged(self, reading: Reading[T]) -> T:
        """Return what was read of the shards. The page names those that are lost."""
        g.lost_shards = {**g.get("lost_shards", {}), **reading.lost}
        return reading.merged()

    def read_time(self) -> datetime:
        """Return the server's time."""
        return self.read(read_fleet).at

    def read_changes(self, most: int) -> list[Change]:
        """Return the newest changes, the newest first."""
        return self.read(lambda observer: read_changes(observer, most))[:most]

    def find_done(self) -> list[Change]:
        """Return the changes that the argument ``done`` names, the oldest first.

        Those that are not among the newest are left out.
        """
        ids = request.args.getlist("done")
        newest = self.read_changes(NEWEST_CHANGES) if ids else []
        return [change for change in reversed(newest) if change.id in ids]

    def without_broker(self, text: str) -> str:
        """Return a text in which the queues of the app are named without its broker."""
        return text.replace(self.limiter.own_broker, "")

    def recent(self, name: str) -> tuple[Period, ...]:
        """Return the last 15 minutes of a limit.

        They are as old as the records on the server may be, so that polls in between find the same.
        """
        # This number increases as often as workers write records.
        return self._recent(name, time.monotonic() // RECORD_SECONDS)

    def _read_recent(self, name: str, _at: float) -> tuple[Period, ...]:
        return self.read(lambda observer: read_recent(observer, name), LimitRef(name, None))


def read_ref(name: str) -> LimitRef:
    """Return the limit of a page and the key of its argument, as people write it or encoded."""
    key = request.values.get("key", "").strip()
    return LimitRef(check_name(name), parse_key(key) if key else None)


@dataclass(frozen=True, slots=True)
class TablePage:
    """One page of a table."""

    total: int  #: the rows of the table
    size: int  #: the rows of a page
    number: int  #: the number of the page, from 1

    @classmethod
    def read(cls, total: int, size: int) -> TablePage:
        """Return the page that the request names; the last page if there are fewer."""
        last = cls(total, size, 1).last
        return cls(total, size, min(page_number(), last))

    @property
    def last(self) -> int:
        """The number of the last page."""
        return max(1, ceil(self.total / self.size))

    @property
    def rows(self) -> slice:
        """The rows of this page."""
        return slice((self.number - 1) * self.size, self.number * self.size)

    @property
    def previous_url(self) -> str | None:
        """The URL of the page before; None on the first page."""
        return self._url(min(self.number - 1, self.last)) if self.number > 1 else None

    @property
    def next_url(self) -> str | None:
        """The URL of the page after; None on the last page."""
        return self._url(self.number + 1) if self.number < self.last else None

    def _url(self, number: int) -> str:
        path = url_for(str(request.endpoint), **(request.view_args or {}))
        # Not as arguments of url_for(), which has some of its own, such as _scheme.
        return f"{path}?{urlencode({**request.args, 'page': number})}"


def page_number() -> int:
    """Return the number of the argument ``page``, from 1 to a billion; 1 without a number."""
    return min(max(1, request.args.get("page", 1, type=int)), _MAX_PAGE)
