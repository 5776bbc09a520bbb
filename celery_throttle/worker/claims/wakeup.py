"""Wake-ups: the server tells an idle worker that a line may be due.

It has begun elsewhere, its limit has changed, or a slot was released.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import hiredis

from celery_throttle.errors import StoreError
from celery_throttle.store.client import Store
from celery_throttle.store.connection import Connection
from celery_throttle.store.script import pack_command
from celery_throttle.worker import tuning


class Channel(NamedTuple):
    """The channel of a worker for one shard."""

    store: Store
    name: str
    #: Called from the thread of the listener when the worker should poll the shard.
    on_wakeup: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Subscription:
    """A connection to one node, and the channels that are subscribed to there."""

    connection: Connection
    channels: Mapping[bytes, Channel]  #: by name
    generations: Mapping[Store, int]  #: of before the connection was opened

    @classmethod
    def open(cls, channels: Sequence[Channel]) -> Subscription:
        """Subscribe to the channels of shards on one node. Raises as :meth:`Store.run`, OSError."""
        generations = {channel.store: channel.store.generation for channel in channels}
        connection = channels[0].store.connection()
        by_name = {channel.name.encode(): channel for channel in channels}
        try:
            connection.send(pack_command("SUBSCRIBE", *by_name))
        except OSError:
            connection.close()
            raise
        return cls(connection, by_name, generations)

    def is_current(self) -> bool:
        """Whether no store has lost this node since, or uses another one."""
        stores = self.generations.items()
        return not any(one.breaker.is_open or one.generation != number for one, number in stores)

    def receive(self) -> None:
        """Read what has arrived: messages, and the reply to the subscription. Raises OSError."""
        for reply in self.connection.read_all():
            if isinstance(reply, hiredis.ReplyError):
                raise ConnectionRefusedError(str(reply))
            _, name, _ = reply
            self.channels[name].on_wakeup()


class WakeupListener:
    """Listens on channels of this worker, in a thread, from :meth:`start` to :meth:`close`.

    Each channel is subscribed to on the node that has its shard, with one connection for each node:
    a script wakes further workers until some have received its message, and a node counts only its
    own subscribers. If a server is lost, or another one is in charge, the listener subscribes
    again. Each subscription counts as a wake-up, since messages before it were lost.

    Args:
        channels: one for each shard on a server, or in a cluster.
    """

    def __init__(self, channels: Sequence[Channel]) -> None:
        self._channels = channels
        self._subscriptions: list[Subscription] = []
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def start(self) -> None:
        """Start the thread, if it does not run. Not earlier: the pool forks before."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="throttle-wake", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread, within a second."""
        self._is_closed = True

    def _run(self) -> None:
        subscribe_at = 0.0
        with selectors.DefaultSelector() as selector:
            while not self._is_closed:
                if time.monotonic() >= subscribe_at:
                    self._subscribe(selector)
                    subscribe_at = time.monotonic() + tuning.RESUBSCRIBE_SECONDS
                for key, _ in selector.select(tuning.RESUBSCRIBE_SECONDS):
                    self._receive(key.data, selector)
            for subscription in [*self._subscriptions]:
                self._drop(subscription, selector)

    def _subscribe(self, selector: selectors.BaseSelector) -> None:
        """Subscribe again to the channels that have no connection, or one that may stay silent."""
        for subscription in [*self._subscriptions]:
            if not subscription.is_current():
                self._drop(subscription, selector)
        subscribed = {name for one in self._subscriptions for name in one.channels}
        by_node: dict[str, list[Channel]] = {}
        for channel in self._channels:
            if channel.name.encode() not in subscribed and not channel.store.breaker.is_open:
                by_node.setdefault(channel.store.node, []).append(channel)
        for channels in by_node.values():
            with suppress(StoreError, OSError):
                subscription = Subscription.open(channels)
                self._subscriptions.append(subscription)
                selector.register(subscription.connection, selectors.EVENT_READ, subscription)

    def _receive(self, subscription: Subscription, selector: selectors.BaseSelector) -> None:
        try:
            subscription.receive()
        except OSError:
            self._drop(subscription, selector)

    def _drop(self, subscription: Subscription, selector: selectors.BaseSelector) -> None:
        selector.unregister(subscription.connection)
        subscription.connection.close()
        self._subscriptions.remove(subscription)
