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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from celery.utils.log import get_logger

from celery_throttle.errors import StoreError
from celery_throttle.observe.status.fleet import is_live
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.membership.queues import WorkerQueues

logger = get_logger(__name__)

#: The remote control command that carries announcements, and the name of its argument.
COMMAND, ARGUMENT = "ping", "throttle"


@dataclass(frozen=True)
class Announcement:
    """Where a worker keeps its limits. It contains no secrets."""

    worker: str  #: as it names itself in heartbeats
    hostname: str
    url: str  #: of the server, without user, password and options
    prefix: str
    app: str  #: name of the app; empty if it has none
    queues: Sequence[str]

    def shares_work(self, other: Announcement) -> bool:
        """Whether both workers run the tasks of the same queue, or of the same app."""
        return not {*self.queues}.isdisjoint(other.queues) or (self.app == other.app != "")


@dataclass(eq=False, repr=False)
class SplitLimits:
    """Announces one worker, and warns of others that do not share its limits.

    Everything that may wait for the broker or the server has a thread of its own, for a moment.
    """

    consumer: Any
    throttle: AppLimits
    worker: str  #: name of the worker
    queues: WorkerQueues

    def __post_init__(self) -> None:
        self._is_due = False  #: whether the server could not be reached when this was announced
        #: By URL and prefix: when they were warned of last.
        self._warned_at: dict[tuple[str, str], float] = {}
        self.consumer.app.throttle_split_limits = self

    def begin(self) -> None:
        """Announce this worker over a new connection to the broker."""
        conf, broker = self.consumer.app.conf, self.consumer.conninfo
        # Celery's own condition for remote control; Amazon SQS, for example, has no fanout.
        if conf.worker_enable_remote_control and broker.supports_exchange_type("fanout"):
            _run_in_thread(self._announce)

    def after_heartbeat(self) -> None:
        """Announce this worker, if that was not possible before."""
        if self._is_due:
            self._is_due = False
            _run_in_thread(self._announce)

    def receive(self, arguments: Any) -> None:
        """Take the announcement of a worker, which may be this one."""
        with suppress(TypeError):  # of another version
            other = Announcement(**arguments)
            if other.worker != self.worker and other.shares_work(self._own()):
                _run_in_thread(self._compare, other)

    def _own(self) -> Announcement:
        app, hostname = self.consumer.app, str(self.consumer.hostname)
        url, prefix = self.throttle.store.url, self.throttle.settings.prefix
        queues = sorted(self.queues.names())
        return Announcement(self.worker, hostname, url, prefix, str(app.main or ""), queues)

    def _is_live(self, worker: str) -> bool:
        """Return whether a worker sends heartbeats to the server of this worker."""
        throttle = self.throttle
        return throttle.run_plan(is_live(throttle.observer, worker))

    def _announce(self) -> None:
        time.sleep(tuning.ANNOUNCEMENT_DELAY_SECONDS)
        try:
            if not self._is_live(self.worker):  # it has ended, so others would not find it
                return
        except StoreError:
            self._is_due = True
            return
        app = self.consumer.app
        try:
            with app.connection_for_write() as connection:
                connection.ensure_connection(max_retries=1)
                arguments = {ARGUMENT: asdict(self._own())}
                app.control.broadcast(COMMAND, arguments=arguments, connection=connection)
        except Exception as error:  # noqa: BLE001  # each transport has errors of its own
            logger.debug("This worker cannot be announced to the others: %s", error)

    def _compare(self, other: Announcement) -> None:
        try:
            if self._is_live(other.worker):
                return
        except StoreError:  # this worker may be the one that is cut off
            return
        where, now = (other.url, other.prefix), time.monotonic()
        if (
            now - self._warned_at.get(where, -tuning.SAME_REPORT_SECONDS)
            < tuning.SAME_REPORT_SECONDS
        ):
            return
        self._warned_at[where] = now
        logger.warning(
            "Limits are split: worker %s keeps them at %s, prefix %r, but this worker at %s, "
            "prefix %r. Each part grants the whole rate, and runs none of the tasks that wait with "
            "the other part: see docs/how-to/move.md",
            other.hostname,
            *where,
            self.throttle.store.url,
            self.throttle.settings.prefix,
        )
        self._announce()  # the other one may have started after this worker was announced


def _run_in_thread(call: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=call, args=args, name="throttle-announcement", daemon=True).start()


def receiver_of(app: Any) -> SplitLimits | None:
    """Return what takes announcements for the worker that runs an app; None if none runs."""
    found: SplitLimits | None = getattr(app, "throttle_split_limits", None)
    return found
