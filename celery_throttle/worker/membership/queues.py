"""The queues that this worker consumes, by the keys of their lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from celery_throttle.errors import StoreError
from celery_throttle.limits.duration import to_us
from celery_throttle.messages.routing import Routing
from celery_throttle.store.keys import QueueKeys
from celery_throttle.store.script import Argument
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.error_log import ErrorLog
from celery_throttle.worker.membership.unconsumed_queues import UnconsumedQueues


@dataclass(eq=False, repr=False)
class WorkerQueues:
    """The queues of one worker."""

    throttle: AppLimits
    #: Returns the routing of the present connection to the broker, None before the first.
    routing: Callable[[], Routing | None]

    def __post_init__(self) -> None:
        #: The queues that no worker consumes.
        self.unconsumed = UnconsumedQueues(self.throttle)
        self._error_log = ErrorLog(
            "The server refuses calls about queues that no worker consumes; their tasks wait."
        )

    def names(self) -> Sequence[str]:
        """Return the names of the queues."""
        routing = self.routing()
        return () if routing is None else routing.names()

    def keys(self) -> list[QueueKeys]:
        """Return the keys of the queues."""
        return [self._keys_of(name) for name in self.names()]

    def names_by_lines(self) -> dict[str, str]:
        """Return the names of the queues by their keys ``lines``."""
        return {self._keys_of(name).lines: name for name in self.names()}

    def heartbeat_arguments(self, names: Sequence[str]) -> tuple[list[str], list[Argument]]:
        """Return the keys and arguments by which ``heartbeat.lua`` learns of these queues."""
        routing = self.routing()
        lines = [self._keys_of(name).lines for name in names]
        kinds = [str(int(routing is not None and routing.is_temporary(name))) for name in names]
        times: list[Argument] = [
            to_us(self.unconsumed.consumer_lease),
            to_us(tuning.UNCONSUMED_QUEUE_SECONDS),
        ]
        keys = self.throttle.keys
        names = [
            keys.temporary_queues,
            keys.consumed_queues,
            keys.changes,
            keys.worker_queues,
            keys.limits_with_keys,
        ]
        return [*names, *lines], [*times, "".join(kinds)]

    def settle_unconsumed(self) -> None:
        """Deal with queues that no worker consumes. Thread-safe."""
        try:
            self.unconsumed.settle()
        except StoreError as error:
            self._error_log.log(error)

    def _keys_of(self, name: str) -> QueueKeys:
        return self.throttle.keys.queue(self.throttle.qualify(name))
