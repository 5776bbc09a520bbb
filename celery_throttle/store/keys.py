"""Every name in Redis, and nothing else.

All names share one prefix. The default prefix is a hash tag, so that in Redis Cluster every key
lies in one slot and one decision over several limits stays atomic. A limit's key part is encoded
by :func:`celery_throttle.limits.key.encode_key`, so it holds no braces, spaces or newlines. A queue
is named with its broker, by :meth:`celery_throttle.app.Throttle.qualify`; up to version 0.1 it was
named without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha1

from celery_throttle.limits.key import LimitRef, encode_key

DEFAULT_PREFIX = "{throttle}"

#: A limit that no user can name. Each fan-out is a key of it, so that it can be paused.
FAN_OUT = "@fan-out"

#: Over so many numbers the tasks of a fan-out are spread.
FAN_OUT_NUMBERS = 64


def fan_out_ref(name: str) -> LimitRef:
    """The key of that limit that a fan-out is."""
    return LimitRef(FAN_OUT, encode_key(name))


def has_hash_tag(prefix: str) -> bool:
    """Whether names with this prefix are all on one node of a cluster."""
    _, _, rest = prefix.partition("{")
    tag, closed, _ = rest.partition("}")
    return bool(tag and closed)


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """What one queue of the broker keeps in Redis while tasks of it wait; see ``line_data.lua``."""

    lines: str
    messages: str
    due: str
    asks: str

    def __iter__(self) -> Iterator[str]:
        """In the scripts' order."""
        return iter((self.lines, self.messages, self.due, self.asks))


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of keys and channels under one prefix."""

    prefix: str = DEFAULT_PREFIX

    @property
    def limits(self) -> str:
        """Hash: definitions of limits, by :meth:`field`, and weights, by :meth:`weight`."""
        return f"{self.prefix}:limits"

    @property
    def workers(self) -> str:
        """Sorted set: workers by the end of their lease."""
        return f"{self.prefix}:workers"

    @property
    def fleet(self) -> str:
        """Sorted set: workers that live, by the time until which they are taken to."""
        return f"{self.prefix}:fleet"

    @property
    def parks(self) -> str:
        """Sorted set: parked messages whose acknowledgement is not known to be done."""
        return f"{self.prefix}:parks"

    @property
    def aside(self) -> str:
        """Hash: tasks that a worker took from a line and has no code for, by task id."""
        return f"{self.prefix}:aside"

    @property
    def rights(self) -> str:
        """String: written for a second, to find out which commands the user may run."""
        return f"{self.prefix}:rights"

    @property
    def temporary(self) -> str:
        """Sorted set: queues with tasks that the broker deletes with their last consumer."""
        return f"{self.prefix}:temporary"

    @property
    def consumed(self) -> str:
        """Sorted set: other queues that hold tasks, by when a worker last said it consumes them."""
        return f"{self.prefix}:consumed"

    def claims(self, worker: str) -> str:
        """Hash: the claims of a worker."""
        return f"{self.prefix}:claims:{worker}"

    def channel(self, worker: str) -> str:
        """Channel on which a sleeping worker is woken."""
        return f"{self.prefix}:wake:{worker}"

    @staticmethod
    def field(ref: LimitRef) -> str:
        """Field of a limit, or of one key of it, in the hash of definitions."""
        return ref.name if ref.key is None else f"{ref.name}:{ref.key}"

    @classmethod
    def weight(cls, ref: LimitRef) -> str:
        """Field of the weight of a limit, or of one key of it, in the same hash."""
        return f"weight {cls.field(ref)}"

    def state(self, ref: LimitRef) -> str:
        """String: what the algorithm remembers of one limit and key."""
        return f"{self.prefix}:state:{self.field(ref)}"

    def entries(self, ref: LimitRef) -> str:
        """Sorted set: who holds a slot. With ``+`` and a number: the log of that limit of it."""
        return f"{self.prefix}:entries:{self.field(ref)}"

    def crowd(self, name: str) -> str:
        """Sorted set: the keys of a limit that are in use, where there may be only so many.

        The definition of the limit holds this name, and scripts find it there.
        """
        return f"{self.prefix}:crowd:{name}"

    def crowd_of(self, entries: str) -> str:
        """The :meth:`crowd` of the limit whose :meth:`entries` have a name."""
        name, _, _ = entries.removeprefix(f"{self.prefix}:entries:").partition(":")
        return self.crowd(name)

    def state_of(self, entries: str) -> str:
        """The :meth:`state` of the limit and key whose :meth:`entries` have a name."""
        return f"{self.prefix}:state:{entries.removeprefix(f'{self.prefix}:entries:')}"

    def pause(self, ref: LimitRef) -> str:
        """String: until when one limit and key is paused; without a key, all of the limit."""
        return f"{self.prefix}:pause:{self.field(ref)}"

    def backlog(self, ref: LimitRef) -> str:
        """String: how many tasks wait in lines at one limit and key, over all queues."""
        return f"{self.prefix}:backlog:{self.field(ref)}"

    def decision(self, ref: LimitRef) -> tuple[str, str, str]:
        """The keys of one limit and key that a decision reads, in the scripts' order."""
        whole = LimitRef(ref.name, None)
        return self.state(ref), self.pause(whole), self.pause(ref)

    def turns(self, ref: LimitRef) -> str:
        """String: when the last of the tasks has its turn that wait at the broker."""
        return f"{self.prefix}:turns:{self.field(ref)}"

    def waits(self, ref: LimitRef) -> str:
        """Hash: the waiting lists of one limit and key, over all queues."""
        return f"{self.prefix}:waits:{self.field(ref)}"

    def waited(self, name: str) -> str:
        """Set: the :meth:`waits` of a limit, over all its keys."""
        return f"{self.prefix}:waited:{name}"

    def waiting(self, queue: str, ref: LimitRef) -> str:
        """Sorted set: lines of one queue that wait at one limit and key, the next first."""
        return f"{self.prefix}:waiting:{self.field(ref)}/{queue}"

    def waiting_at(self, queue: str, ref: LimitRef) -> tuple[str, ...]:
        """The keys of one limit and key that a line of a queue has to do with.

        In the scripts' order: state, entries, pause, pause of the key, backlog, waiting, waits,
        waited.
        """
        state, *pauses = self.decision(ref)
        lists = self.waiting(queue, ref), self.waits(ref), self.waited(ref.name)
        return state, self.entries(ref), *pauses, self.backlog(ref), *lists

    def queue(self, name: str) -> QueueKeys:
        """The keys of one queue."""
        return QueueKeys(
            *(f"{self.prefix}:{kind}:{name}" for kind in ("lines", "messages", "due", "asks"))
        )

    def fan_out(self, name: str) -> str:
        """Hash: what is known of a fan-out; and the head of more names, see ``fan_out.lua``."""
        return f"{self.prefix}:fan-out:{encode_key(name)}"

    @staticmethod
    def fan_out_number(task_id: str) -> int:
        """The number of a task in its fan-out. Twin: ``fan_out_number`` of ``fan_out.lua``."""
        data = task_id.encode("utf-8", "surrogatepass")
        return sha1(data, usedforsecurity=False).digest()[0] % FAN_OUT_NUMBERS

    def line(self, queue: str, refs: Sequence[LimitRef]) -> str:
        """Sorted set: the line of a queue for a set of limits and keys.

        Named by a digest: neither the length nor the content of queue and keys is bounded.
        """
        digest = blake2b(digest_size=16)
        for text in (queue, *(self.field(ref) for ref in refs)):
            data = text.encode("utf-8", "surrogatepass")
            digest.update(b"%d:" % len(data))
            digest.update(data)
        return f"{self.prefix}:line:{digest.hexdigest()}"
