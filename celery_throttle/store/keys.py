"""The names of all Redis keys and channels; ``tests/key_catalogue.py`` says what each holds.

All names share one prefix. The default prefix is a hash tag, so that in Redis Cluster all keys are
in one hash slot, and a decision over several limits is atomic. Keys of limits are encoded by
:func:`celery_throttle.limits.key.encode_key`, so they contain no braces, spaces or newlines. A
queue is named with its broker, by :meth:`celery_throttle.app.Throttle.qualify`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b, sha1
from itertools import count
from typing import NamedTuple

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from celery_throttle.limits.key import LimitRef, encode_key
from celery_throttle.limits.shards import HOME, Shard

DEFAULT_PREFIX = "{throttle}"

#: The name for which the lines of paused fan-outs wait, each fan-out by a key of it. It stands
#: beside limits in a line, but has no limit and is never defined. No user can give this name.
FAN_OUT_NAME = "@fan-out"

#: Where surplus tasks wait; no user can give this name either.
_SURPLUS = LimitRef("@surplus", None)

#: The number of parts into which the tasks of a fan-out are divided, by their ids.
FAN_OUT_NUMBERS = 64


def fan_out_ref(name: str) -> LimitRef:
    """Return the key of :data:`FAN_OUT_NAME` for a fan-out."""
    return LimitRef(FAN_OUT_NAME, encode_key(name))


def has_hash_tag(prefix: str) -> bool:
    """Whether a cluster keeps all names with this prefix on one node."""
    _, _, rest = prefix.partition("{")
    tag, closed, _ = rest.partition("}")
    return bool(tag and closed)


@cache
def shard_prefix(prefix: str, shard: Shard) -> str:
    """Return the prefix of the keys of a shard; ``prefix`` is that of the home shard.

    It has a hash tag of its own. If a limit is divided by key among n shards, the tag has a salt:
    the first number with which the slot of the i-th shard is in the i-th of n equal ranges of
    slots, so that the shards are spread evenly over the nodes of a cluster.
    """
    if shard.name == HOME:
        return prefix
    head, tag, tail = "", prefix, ""
    if has_hash_tag(prefix):
        head, _, rest = prefix.partition("{")
        tag, _, tail = rest.partition("}")
    tag = f"{tag}:{shard.name}"
    if shard.by_key is not None:
        stem = f"{tag}:{shard.number}/{shard.by_key}."
        tag = next(
            salted
            for salted in (f"{stem}{salt}" for salt in count())
            if key_slot(salted.encode()) * shard.by_key // REDIS_CLUSTER_HASH_SLOTS == shard.number
        )
    return f"{head}{{{tag}}}{tail}"


class QueueKeys(NamedTuple):
    """The keys of one queue of the broker, in the scripts' order; see ``line_data.lua``."""

    lines: str
    messages: str
    due: str
    polls: str


@dataclass(frozen=True, slots=True)
class _Name:
    """The name of a key of which there is one; of the class, only what follows the prefix."""

    word: str

    def __get__(self, keys: Keys | None, _: type[Keys]) -> str:
        return self.word if keys is None else f"{keys.prefix}:{self.word}"


def _of_limit(word: str) -> Callable[[Keys, LimitRef], str]:
    """Return the method that names what each limit has, and each key of it."""

    def key(self: Keys, ref: LimitRef) -> str:
        return f"{self.prefix}:{word}:{self.field(ref)}"

    return key


def _of_name(word: str) -> Callable[[Keys, str], str]:
    """Return the method that names what there is of each name."""

    def key(self: Keys, name: str) -> str:
        return f"{self.prefix}:{word}:{name}"

    return key


@dataclass(frozen=True, slots=True)
class Keys:
    """The names of keys and channels with one prefix."""

    prefix: str = DEFAULT_PREFIX

    #: Records of limits and keys by :meth:`field`, and weights behind ``weight``.
    limits = _Name("limits")
    rules = _Name("rules")  #: the rules file that is in force, or is put in force
    rules_files = _Name("rules-files")  #: the rules files of live workers
    names = _Name("names")  #: names of the limits that are defined
    changes = _Name("changes")  #: the log of changes
    shards = _Name("shards")  #: the limits that are in other shards
    workers = _Name("workers")  #: workers with claims
    membership = _Name("membership")  #: live workers
    #: Parked messages that the broker may still deliver again.
    unacknowledged = _Name("unacknowledged")
    quarantine = _Name("quarantine")  #: tasks that a worker took from a line and has no code for
    #: The key by which a worker tests which commands its user may run.
    permission_probe = _Name("rights")
    #: Queues with tasks, by when a worker last reported to consume them.
    consumed_queues = _Name("consumed")
    #: The same, of queues that the broker deletes with their last consumer.
    temporary_queues = _Name("temporary")
    #: All queues of live workers, by when a worker last reported to consume them.
    worker_queues = _Name("queues")
    #: Limits of which tasks of workers need keys, by when a worker last reported that.
    limits_with_keys = _Name("keyed")
    outages = _Name("outages")  #: for how long workers were in outage mode, summed over workers
    #: Tasks whose starts do not pass the gate, by when a worker last saw such a start.
    ungated = _Name("ungated")
    recorded = _Name("recorded")  #: when the last records of totals were made
    fan_outs = _Name("fan-outs")  #: the records of fan-outs, by when each was last found

    state = _of_limit("state")
    #: Slots in use; with "+" and n appended, of the n-th limit's log.
    entries = _of_limit("entries")
    pause = _of_limit("pause")  #: without a key, of all keys of the limit
    pause_origin = _of_limit("paused-by")  #: who has made the pause, when and why
    refusals = _of_limit("refusals")  #: the refusals in a row; see ``learn.lua``
    backlog = _of_limit("backlog")  #: the number of tasks that wait, in all queues
    return_times = _of_limit("return-times")  #: of the tasks that wait at the broker
    waiting_lists = _of_limit("waiting-lists")  #: the names of the waiting lists of all queues

    own_keys = _of_name("own")  #: the keys of a limit with their own definition or weight
    key_cap = _of_name("key-cap")  #: the keys of a limit that are in use; in definitions
    paused_keys = _of_name("paused")  #: the paused keys of a limit
    waiting_list_index = _of_name("waiting-list-index")  #: :attr:`waiting_lists` of a limit's keys
    claims = _of_name("claims")  #: the claims of a worker
    wakeup_channel = _of_name("wake")  #: the pub/sub channel that wakes a worker
    once = _of_name("once")  #: exists for a while after somebody has begun something

    @property
    def definition_change(self) -> tuple[str, ...]:
        """The keys of a change of definitions, in the order of ``lib/definitions.lua``."""
        heads = (f"{self.prefix}:{kind}:" for kind in ("state", "entries", "own"))
        return self.limits, self.rules, self.names, self.changes, *heads, self.shards

    @property
    def shard_move(self) -> tuple[str, ...]:
        """The keys of a move of a limit to another shard, in the scripts' order."""
        heads = (f"{self.prefix}:{kind}:" for kind in ("pause", "paused-by", "paused"))
        return *self.definition_change, *heads

    @staticmethod
    def field(ref: LimitRef) -> str:
        """Return the field of a limit, or of one key of it, in the hash of definitions."""
        return ref.name if ref.key is None else f"{ref.name}:{ref.key}"

    def key_cap_of(self, entries: str) -> str:
        """Return the :attr:`key_cap` of the limit with these :attr:`entries`."""
        name, _, _ = entries.removeprefix(f"{self.prefix}:entries:").partition(":")
        return self.key_cap(name)

    def state_of(self, entries: str) -> str:
        """Return the :attr:`state` of the limit and key with these :attr:`entries`."""
        return f"{self.prefix}:state:{entries.removeprefix(f'{self.prefix}:entries:')}"

    def pause_change(self, ref: LimitRef) -> tuple[str, str, str, str]:
        """Return the keys of a change of a pause, in the scripts' order."""
        return (
            self.pause(ref),
            self.pause_origin(ref),
            self.paused_keys(ref.name),
            self.changes,
        )

    def decision(self, ref: LimitRef) -> tuple[str, str, str]:
        """Return the keys of a limit and key that a decision reads, in the scripts' order."""
        field, pauses = self.field(ref), f"{self.prefix}:pause"
        return f"{self.prefix}:state:{field}", f"{pauses}:{ref.name}", f"{pauses}:{field}"

    def totals(self, name: str = "") -> str:
        """Return the key of the totals of a limit; without a name the head of all these keys.

        Scripts append ``/keys``, ``/recent`` and ``/week``, see :meth:`key_backlogs` and
        :meth:`records`.
        """
        return f"{self.prefix}:totals:{name}"

    def key_backlogs(self, name: str) -> str:
        """Return the key of the backlogs of the keys of a limit."""
        return f"{self.totals(name)}/keys"

    def records(self, name: str, which: str) -> str:
        """Return the key of records of the totals: ``"recent"`` ones, or those of a ``"week"``."""
        return f"{self.totals(name)}/{which}"

    def waiting_list(self, queue: str, ref: LimitRef) -> str:
        """Return the key of the lines of one queue that wait at one limit and key."""
        return f"{self.prefix}:waiting:{self.field(ref)}/{queue}"

    @staticmethod
    def field_ref(field: str) -> LimitRef:
        """Return the limit and key of a :meth:`field`."""
        name, has_key, key = field.partition(":")
        return LimitRef(name, key if has_key else None)

    def line_limit_keys(self, queue: str, ref: LimitRef) -> tuple[str, ...]:
        """Return the keys of one limit of a line, in the scripts' order.

        State, entries, pause, pause of the key, backlog, waiting list, waiting lists, their index.
        """
        state, *pauses = self.decision(ref)
        waiting = self.waiting_list(queue, ref), self.waiting_lists(ref)
        index = self.waiting_list_index(ref.name)
        return state, self.entries(ref), *pauses, self.backlog(ref), *waiting, index

    def queue(self, name: str) -> QueueKeys:
        """Return the keys of one queue."""
        return QueueKeys(
            *(f"{self.prefix}:{kind}:{name}" for kind in ("lines", "messages", "due", "polls"))
        )

    def fan_out(self, name: str) -> str:
        """Return the record of a fan-out, the prefix of further names; see ``fan_outs.lua``."""
        return f"{self.prefix}:fan-out:{encode_key(name)}"

    def fan_out_tasks(self, name: str, task_id: str) -> str:
        """Return the hash of a fan-out that has a task, if it was sent; see ``fan_outs.lua``."""
        return f"{self.fan_out(name)}:{self.fan_out_number(task_id)}"

    def fan_out_name(self, record: str) -> str:
        """Return the name of the fan-out with this :meth:`fan_out`, as it is encoded there."""
        return record.removeprefix(f"{self.prefix}:fan-out:")

    @staticmethod
    def fan_out_number(task_id: str) -> int:
        """Return the number of the part that a task belongs to. Twin: in ``fan_outs.lua``."""
        data = task_id.encode("utf-8", "surrogatepass")
        return sha1(data, usedforsecurity=False).digest()[0] % FAN_OUT_NUMBERS

    def line(self, queue: str, refs: Sequence[LimitRef], task: str = "") -> str:
        """Return the line of a queue for a set of limits and keys.

        ``task``: the name of the task to which the line belongs, if it has only the tasks of one.

        The name contains a digest, since a queue and keys may have any length and content.
        """
        digest = blake2b(digest_size=16)
        only = (f"@task {task}",) if task else ()
        for text in (queue, *(self.field(ref) for ref in refs), *only):
            data = text.encode("utf-8", "surrogatepass")
            digest.update(b"%d:" % len(data))
            digest.update(data)
        return f"{self.prefix}:line:{digest.hexdigest()}"

    def surplus(self, queue: str, refs: Sequence[LimitRef], task: str) -> tuple[str, str]:
        """Return the surplus line of a line, and its waiting list; see ``line_data.lua``."""
        return self.line(queue, (*refs, _SURPLUS), task), self.waiting_list(queue, _SURPLUS)
