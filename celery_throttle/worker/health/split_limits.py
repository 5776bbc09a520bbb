"""Finds workers of the same queues or app that keep their limits on another server or prefix.

Each part of such workers grants the whole rate, and runs none of the tasks that wait with the other
part. This happens while a changed ``throttle_url`` or ``throttle_prefix`` is deployed. Only the
broker is shared then. So each worker announces itself at the broker, once for each connection, and
the others look for it among the workers that send heartbeats to their own server. Two names of one
server are not taken for two servers, nor one name for one server if it means another on each host.

An announcement is Celery's remote control command ``ping`` with an additional argument. Workers
without this package ignore the argument; of an unknown command they would log an error.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple

from celery.utils.log import get_logger

from celery_throttle.errors import StoreError
from celery_throttle.observe.status.fleet import is_live
from celery_throttle.worker import tuning
from celery_throttle.worker.health.membership import Membership

logger = get_logger(__name__)

#: Announcements that are kept until the next heartbeat.
_MOST_ANNOUNCEMENTS = 1000


class Announcement(NamedTuple):
    """Where a worker keeps its limits. It contains no secrets."""

    worker: str  #: as it names itself in heartbeats
    hostname: str
    url: str  #: of the server, without user, password and options
    prefix: str
    app: str  #: name of the app; empty if it has none
    queues: list[str]

    def shares_work(self, other: Announcement) -> bool:
        """Whether both workers run the tasks of the same queue, or of the same app."""
        return not {*self.queues}.isdisjoint(other.queues) or (self.app == other.app != "")


class SplitLimits:
    """Announces one worker, and warns of others that do not share its limits."""

    def __init__(self, consumer: Any, membership: Membership) -> None:
        self._consumer = consumer
        self._membership = membership
        #: Monotonic time from which on this worker is to be announced.
        self._announce_at = inf
        self._received: deque[Announcement] = deque(maxlen=_MOST_ANNOUNCEMENTS)
        #: By URL and prefix: when they were warned of last.
        self._warned_at: dict[tuple[str, str], float] = {}
        consumer.app.throttle_split_limits = self

    def begin(self) -> None:
        """Announce this worker over a new connection to the broker, after a heartbeat."""
        conf, broker = self._consumer.app.conf, self._consumer.conninfo
        # Celery's own condition for remote control; Amazon SQS, for example, has no fanout.
        if conf.worker_enable_remote_control and broker.supports_exchange_type("fanout"):
            self._announce_at = time.monotonic() + tuning.ANNOUNCEMENT_DELAY_SECONDS

    def after_heartbeat(self) -> None:
        """Announce this worker, which is known to its server now, and look for the others."""
        while self._received:
            with suppress(StoreError):  # this worker may be the one that is cut off
                self._compare(self._received.popleft())
        if time.monotonic() >= self._announce_at:
            self._announce_at = inf
            # In a thread of its own: it may wait for the broker.
            threading.Thread(
                target=self._announce, name="throttle-announcement", daemon=True
            ).start()

    def receive(self, arguments: Any) -> None:
        """Take the announcement of a worker, which may be this one."""
        with suppress(TypeError):  # of another version
            other, own = Announcement(**arguments), self._own()
            if other.worker != own.worker and other.shares_work(own):
                self._received.append(other)
                self._membership.wake_up()

    def _own(self) -> Announcement:
        app, membership = self._consumer.app, self._membership
        throttle = membership.throttle
        return Announcement(
            membership.worker,
            str(self._consumer.hostname),
            throttle.store.url,
            throttle.settings.prefix,
            str(app.main or ""),
            sorted(membership.queues.names()),
        )

    def _announce(self) -> None:
        app = self._consumer.app
        try:
            with app.connection_for_write() as connection:
                connection.ensure_connection(max_retries=1)
                arguments = {"throttle": self._own()._asdict()}
                app.control.broadcast("ping", arguments=arguments, connection=connection)
        except Exception as error:  # noqa: BLE001  # each transport has errors of its own
            logger.debug("This worker cannot be announced to the others: %s", error)

    def _compare(self, other: Announcement) -> None:
        """Warn of a worker that sends no heartbeats to the server of this worker."""
        throttle, now = self._membership.throttle, time.monotonic()
        where = other.url, other.prefix
        is_recent = now - self._warned_at.get(where, -inf) < tuning.SAME_REPORT_SECONDS
        if is_recent or throttle.run_plan(is_live(throttle.observer, other.worker)):
            return
        self._warned_at[where] = now
        logger.warning(
            "Limits are split: worker %s keeps them at %s, prefix %r, but this worker at %s, "
            "prefix %r. Each part grants the whole rate, and runs none of the tasks that wait with "
            "the other part: see docs/how-to/move.md",
            other.hostname,
            *where,
            throttle.store.url,
            throttle.settings.prefix,
        )
        self._announce_at = now  # the other one may have started after this worker was announced
