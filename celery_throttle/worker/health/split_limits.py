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
from typing import Any

from celery.utils.log import get_logger

from celery_throttle.errors import StoreError
from celery_throttle.observe.status.fleet import find_members
from celery_throttle.worker import tuning
from celery_throttle.worker.health.membership import Membership

logger = get_logger(__name__)

#: Announcements that are kept until the next heartbeat.
_MOST_ANNOUNCEMENTS = 1000


class SplitLimits:
    """Announces one worker, and warns of others that do not share its limits."""

    def __init__(self, consumer: Any, membership: Membership) -> None:
        self._consumer = consumer
        self._membership = membership
        #: Monotonic time from which on this worker is to be announced.
        self._announce_at = inf
        #: The names of workers, and at which URL and with which prefix they keep their limits.
        self._received: deque[tuple[str, tuple[str, str]]] = deque(maxlen=_MOST_ANNOUNCEMENTS)
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
        received: dict[str, tuple[str, str]] = {}
        while self._received:
            worker, where = self._received.popleft()
            received[worker] = where
        if received:
            try:
                self._compare(received)
            except StoreError:  # this worker may be the one that is cut off
                self._received.extend(received.items())
        if time.monotonic() >= self._announce_at:
            self._announce_at = inf
            # In a thread of its own: it may wait for the broker.
            threading.Thread(
                target=self._announce, name="throttle-announcement", daemon=True
            ).start()

    def receive(self, other: Any) -> None:
        """Take the announcement of a worker, which may be this one."""
        own = self._announcement()
        with suppress(KeyError, TypeError):  # of another version
            worker, where = other["worker"], (other["url"], other["prefix"])
            if worker != own["worker"] and not {*own["work"]}.isdisjoint(other["work"]):
                self._received.append((worker, where))
                if where != (own["url"], own["prefix"]):  # else the next heartbeat is soon enough
                    self._membership.wake_up()

    def _announcement(self) -> dict[str, Any]:
        """Return where this worker keeps its limits, and what it works on; no secrets."""
        app, membership = self._consumer.app, self._membership
        return {
            "worker": membership.worker,  # as it names itself in heartbeats
            "url": membership.throttle.store.url,  # without user, password and options
            "prefix": membership.throttle.settings.prefix,
            "work": [*membership.queues.names(), *([f"app {app.main}"] if app.main else [])],
        }

    def _announce(self) -> None:
        app, arguments = self._consumer.app, {"throttle": self._announcement()}
        try:
            with app.connection_for_write() as connection:
                connection.ensure_connection(max_retries=1)
                app.control.broadcast("ping", arguments=arguments, connection=connection)
        except Exception as error:  # noqa: BLE001  # each transport has errors of its own
            logger.debug("This worker cannot be announced to the others: %s", error)

    def _compare(self, received: dict[str, tuple[str, str]]) -> None:
        """Warn of workers that send no heartbeats to the server of this worker."""
        throttle = self._membership.throttle
        members = throttle.run_plan(find_members(throttle.observer, [*received]))
        for worker, where in received.items():
            if worker not in members:
                self._warn(worker, where)

    def _warn(self, worker: str, where: tuple[str, str]) -> None:
        throttle, now = self._membership.throttle, time.monotonic()
        if now - self._warned_at.get(where, -inf) < tuning.SAME_REPORT_SECONDS:
            return
        self._warned_at[where] = now
        logger.warning(
            "Limits are split: worker %s keeps them at %s, prefix %r, but this worker at %s, "
            "prefix %r. Each part grants the whole rate, and runs none of the tasks that wait with "
            "the other part: see docs/how-to/move.md",
            worker.rsplit(":", 2)[0],  # without the id of its process
            *where,
            throttle.store.url,
            throttle.settings.prefix,
        )
        self._announce_at = now  # the other one may have started after this worker was announced
