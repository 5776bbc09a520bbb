"""Heartbeats: this worker is one of those that live, and learns the limits for an outage.

The same call finds out whether a lost server is back. It is made in a thread of its own, as a
server that does not answer takes its time. The shards on one server, or in one cluster, share it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from celery_throttle.errors import LimitError, StoreError
from celery_throttle.limits.duration import pause_to_seconds, to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limits
from celery_throttle.observe.observer import CONSUMED_SECONDS
from celery_throttle.observe.status.fleet import MANY_WORKERS, report_seconds
from celery_throttle.store import definitions
from celery_throttle.store.client import Store
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import Argument, Call, script
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.health.queues import WorkerQueues
from celery_throttle.worker.rounds import run_round

#: Prefix of the fields of the reply that report pauses; no name of a limit has a space.
_PAUSE = b"pause "


@dataclass(eq=False, repr=False)
class Membership:
    """Sends the heartbeats of one worker to one shard, in the thread of :class:`Heartbeats`."""

    throttle: AppLimits
    worker: str  #: name of the worker
    queues: WorkerQueues
    #: Returns those of some limits that are in the shard.
    names_in: Callable[[Iterable[str]], list[str]]
    #: Called from the thread when a lost server is back.
    on_return: Callable[[], None]
    #: Called from the thread after each heartbeat.
    on_heartbeat: Callable[[], None]
    #: Number of live workers at the last heartbeat, with this one; None before the first.
    reported_workers: int | None = None
    quarantined: int = 0  #: number of tasks in quarantine at the last heartbeat
    newest_change: str = ""  #: id of the newest change of a limit at the last heartbeat

    def __post_init__(self) -> None:
        #: Seconds for which a worker counts as alive after a heartbeat.
        self._lease = self.throttle.settings.lease
        self._store = self.throttle.store
        self._definitions: Mapping[bytes, bytes] = {}
        self._replied_at = 0.0
        #: Sends them; of all shards on the server, or in the cluster.
        self.heartbeats: Heartbeats

    @property
    def workers(self) -> int | None:
        """The number of live workers, or the configured one before the first heartbeat, if any."""
        return self.reported_workers or self.throttle.settings.outage_workers

    @property
    def interval(self) -> float:
        """The longest time between two heartbeats, in seconds: at most a third of the lease."""
        has_rules = self.throttle.rules_file is not None
        longest = tuning.RULES_POLL_SECONDS if has_rules else tuning.MAX_HEARTBEAT_SECONDS
        return min(self._lease / 3, longest)

    @property
    def may_skip(self) -> bool:
        """Whether every other heartbeat may be left out: there are so many workers."""
        is_home = self.throttle.plans.fence is None
        return not is_home and (self.reported_workers or 1) > MANY_WORKERS

    def start(self) -> None:
        """Send the first heartbeat; the server need not answer."""
        if self.throttle.limits:
            self.send()
        else:  # nothing in this worker depends on the reply, so the worker does not wait for it
            self.wake_up()

    def stop(self) -> None:
        """Leave: the other workers may use more of each limit during an outage."""
        self.heartbeats.stop()
        # By then the other workers have reported the queues that they consume as well.
        earlier = CONSUMED_SECONDS - report_seconds(self.reported_workers or 1)
        with suppress(StoreError):  # then the worker counts as alive until its lease runs out
            self._store.probe(self._call(-to_us(earlier)))

    def reconnect(self) -> None:
        """Call the server, which is lost, again and again until it is back."""
        self.heartbeats.reconnect(self._store)

    def wake_up(self) -> None:
        """Send the next heartbeat now."""
        self.heartbeats.wake_up()

    def limits(self) -> dict[LimitRef, Limits]:
        """Return the limits in force at the last heartbeat, of names and of keys with their own."""
        found = {LimitRef(name, None): limits for name, limits in self.throttle.limits.items()}
        for field, packed in self._definitions.items():
            if field.startswith(_PAUSE):
                continue
            with suppress(LimitError):  # defined by a later version of this package
                found[Keys.field_ref(field.decode())] = definitions.unpack(packed)
        return found

    def pauses(self) -> dict[str, float]:
        """Return the limits in use that were paused as a whole at the last heartbeat.

        The values are the monotonic times at which the pauses end; infinity for a pause that lasts
        until ``resume``.
        """
        return {
            field[len(_PAUSE) :].decode(): self._replied_at + pause_to_seconds(int(us))
            for field, us in self._definitions.items()
            if field.startswith(_PAUSE)
        }

    def send(self) -> bool:
        """Send a heartbeat; return whether the server answered."""
        try:
            return self.receive(self._store.probe(self.call()))
        except StoreError:
            return False

    def call(self) -> Call:
        """Return the call of a heartbeat."""
        return self._call(to_us(self._lease))

    def receive(self, reply: list[Any] | StoreError) -> bool:
        """Record the reply to a heartbeat, or its error; return whether the server answered."""
        if isinstance(reply, StoreError):
            return False
        self.reported_workers, self.quarantined, newest_change, deleted, *fields = reply
        self.newest_change = newest_change.decode()
        self._definitions = dict(zip(fields[::2], fields[1::2], strict=True))
        self._replied_at = time.monotonic()
        self.queues.note_deleted(deleted)
        return True

    def _call(self, lease_us: int) -> Call:
        keys, in_use = self.throttle.keys, self.names_in(self.throttle.limits)
        pauses = [keys.pause(LimitRef(name, None)) for name in in_use]
        queue_keys, queue_args = self.queues.heartbeat_arguments()
        names = [keys.membership, keys.limits, keys.quarantine, *queue_keys, *pauses]
        args: list[Argument] = ["", self.worker, lease_us, tuning.HEARTBEAT_DEFINITION_COUNT]
        with_keys = " ".join(self.names_in(self.throttle.limits_with_keys()))
        return Call(script("heartbeat"), names, [*args, *queue_args, with_keys, *in_use])


class Heartbeats:
    """Sends the heartbeats of the shards on one server, or in one cluster, in one thread.

    Args:
        by_store: the memberships of these shards, by their stores.
    """

    def __init__(self, by_store: Mapping[Store, Sequence[Membership]]) -> None:
        self._by_store = by_store
        memberships = [*chain.from_iterable(by_store.values())]
        for membership in memberships:
            membership.heartbeats = self
        self._interval = min(membership.interval for membership in memberships)
        #: Monotonic time of the next heartbeats; 0.0 if they were asked for.
        self._due_at = time.monotonic() + self._interval
        self._lost: set[Store] = set()
        self._wakeup = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, if it does not run. Not earlier: the pool forks before."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="throttle-heartbeat", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Send no more heartbeats."""
        self._stopped = True
        self._wakeup.set()

    def reconnect(self, store: Store) -> None:
        """Call a server, which is lost, again and again until it is back."""
        self._lost.add(store)
        self._wakeup.set()

    def wake_up(self) -> None:
        """Send the next heartbeats now."""
        self._due_at = 0.0
        self._wakeup.set()

    def _run(self) -> None:
        skips = False
        while not self._stopped:
            lost = list(filter(self._is_lost, self._by_store))
            if lost:
                time.sleep(tuning.RECONNECT_SECONDS)
            else:
                self._wakeup.wait(self._due_at - time.monotonic())
            self._wakeup.clear()
            if self._stopped:
                return
            if time.monotonic() >= self._due_at:
                skips = self._due_at > 0.0 and not skips
                self._due_at = time.monotonic() + self._interval
                reachable = [store for store in self._by_store if not self._is_lost(store)]
                send = partial(self._send, skips=skips)
                run_round([partial(send, store) for store in reachable], tuning.ROUND_SECONDS)
            run_round([partial(self._reconnect, store) for store in lost], patience=0.0)

    def _is_lost(self, store: Store) -> bool:
        # It may have been lost before there was a watcher of its breaker.
        return store in self._lost or store.breaker.is_open

    def _send(self, store: Store, *, skips: bool) -> None:
        """Send the heartbeats to a server; ``skips``: leave out those that may be left out."""
        due = [each for each in self._by_store[store] if not (skips and each.may_skip)]
        answered = self._answered(store, due)
        run_round([each.on_heartbeat for each in answered], tuning.ROUND_SECONDS)

    def _reconnect(self, store: Store) -> None:
        """Send the heartbeats to a server that was lost, if it is back."""
        self._lost.discard(store)  # from now on, it may be lost again
        memberships = self._by_store[store]
        if store.breaker.is_open:
            memberships[0].send()  # finds out whether it is back
        answered = [] if store.breaker.is_open else self._answered(store, memberships)
        if not answered:
            self._lost.add(store)
            return
        run_round([each.on_return for each in memberships], tuning.ROUND_SECONDS)
        run_round([each.on_heartbeat for each in answered], tuning.ROUND_SECONDS)

    @staticmethod
    def _answered(store: Store, memberships: Sequence[Membership]) -> list[Membership]:
        """Send heartbeats in one round trip; return those that were answered."""
        try:
            replies = store.run_all([each.call() for each in memberships])
        except StoreError:
            return []
        pairs = zip(memberships, replies, strict=True)
        return [each for each, reply in pairs if each.receive(reply)]
