"""The queues that this worker consumes, by the keys of their lines.

Earlier versions named lines by the queue alone, without its broker. Tasks that wait under such a
name are claimed from there, before others of their queue, by whoever consumes a queue of that name.
A worker looks for them with each heartbeat; its claims name only queues that hold some.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from celery_throttle.errors import StoreError
from celery_throttle.scripts import Call, script

if TYPE_CHECKING:
    from celery_throttle.app import Throttle
    from celery_throttle.keys import QueueKeys
    from celery_throttle.worker.origin import Origin

logger = get_logger(__name__)


class Queues:
    """Of one worker.

    Args:
        throttle: the app's limits.
    """

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle
        self._origin: Origin | None = None
        self._earlier: frozenset[str] = frozenset()

    def use(self, origin: Origin) -> None:
        """Go on with those of a new connection to the broker."""
        self._origin = origin

    def keys(self) -> list[Sequence[QueueKeys]]:
        """For each queue, the keys under which tasks of it may wait now."""
        return [tuple(self._keys_of(name)) for name in self._names()]

    def lines(self) -> dict[str, str]:
        """The names of the queues by their keys ``lines``, now and under earlier names."""
        keys, qualify = self._throttle.keys, self._throttle.qualify
        return {
            keys.queue(one).lines: name for name in self._names() for one in (name, qualify(name))
        }

    def look(self) -> None:
        """Find out which queues hold tasks under their earlier names. From any thread."""
        names = self._names()
        lines = [self._throttle.keys.queue(name).lines for name in names]
        try:
            found = self._throttle.store.run(Call(script("consume"), lines))
        except StoreError as error:
            logger.debug("Could not look for lines of earlier versions: %s", error)
            return
        both = zip(names, found, strict=True)
        self._earlier = frozenset(name for name, is_there in both if is_there)

    def _names(self) -> Sequence[str]:
        return () if self._origin is None else self._origin.names()

    def _keys_of(self, name: str) -> Iterator[QueueKeys]:
        if name in self._earlier:
            yield self._throttle.keys.queue(name)
        yield self._throttle.keys.queue(self._throttle.qualify(name))
